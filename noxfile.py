"""Runs the tests on every supported interpreter: `nox` (pip install nox), or `nox -s core-3.13`.

`.ci/run` tests one interpreter only. The compiled core implements type slots itself (`tp_iternext`,
`am_send`), which may behave differently in each version of CPython and on each event loop.
Interpreters that are not installed are skipped.
"""

from __future__ import annotations

import nox

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
LOOPS = ["asyncio", "uvloop"]

PROJECT = nox.project.load_toml("pyproject.toml")
BUILD = PROJECT["build-system"]["requires"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
TOOLS = ["aiokafka", "hypothesis", "kafka-python", "packaging", "pytest", "pytest-asyncio"]

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["loops", "core", "tests"]
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True


@nox.session(python=PYTHONS)
@nox.parametrize("loop", LOOPS)
def loops(session: nox.Session, loop: str) -> None:
    """Test the compiled awaitables on a real event loop; takes seconds."""
    build(session, TOOLS)
    session.run("python", "-m", "pytest", "tests/test_event_loops.py", "-k", loop)


@nox.session(python=PYTHONS)
def core(session: nox.Session) -> None:
    """Test the compiled core; takes a minute."""
    build(session, TOOLS + EXTRAS["snappy"])
    session.run("python", "-m", "pytest", "tests/core")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run all unit tests except the long matrices, or the tests given after `--`."""
    build(session, EXTRAS["test"] + ["packaging"])
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "2", "-m", "not matrix"]))


def build(session: nox.Session, requirements: list[str]) -> None:
    """Install the requirements and build the extensions in place, where the tests import them."""
    session.install(*BUILD, *PROJECT["project"]["dependencies"], *requirements)
    session.run("python", "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", "2")
