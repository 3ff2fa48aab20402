"""The canary detects leaks, and reports nothing else."""

from __future__ import annotations

import asyncio
import base64
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiokprod import KafkaError, Producer, Secret
from tests.secret_leak_check import (
    CanaryPlugin,
    Guard,
    chain_text,
    found_in_frames,
    secret_forms,
    wanted_level,
)

WORD = "canary"

# Intended findings of these tests must not fail the run.
pytestmark = pytest.mark.canary_is_text


def record(message: str, *args: Any, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("aiokprod.x", logging.DEBUG, __file__, 1, message, args, info)


@pytest.mark.parametrize(
    "text",
    [
        WORD,
        WORD.upper(),
        repr(WORD.encode()),
        *(
            base64.b64encode(b"x" * before + WORD.encode() + b"tail").decode()
            for before in range(3)
        ),
        WORD.encode().hex(),
    ],
)
def test_canary_is_seen_in_clear_base64_and_hex(text: str) -> None:
    guard = Guard()
    guard.look("here", f"before {text} after")
    assert guard.take()
    assert guard.take() == []


def test_canary_is_seen_in_messages_arguments_and_tracebacks_of_records() -> None:
    guard = Guard()
    cause = ValueError(WORD)
    error = RuntimeError("harmless")
    error.__cause__ = cause
    for one in (
        record(f"a {WORD}"),
        record("%s", WORD),
        record("%(known)s", {"known": 1, "hidden": WORD}),
        record("harmless", error=error),
    ):
        guard.log_record(one)
        assert len(guard.take()) == 1
    guard.log_record(record("%d of %d", 1, 2, error=RuntimeError("harmless")))
    assert guard.take() == []


def test_canary_is_seen_in_causes_contexts_groups_and_notes_but_not_in_what_is_suppressed() -> None:
    noted = RuntimeError("harmless")
    noted.add_note(WORD)
    group = ExceptionGroup("harmless", [ValueError("harmless"), KafkaError(WORD[:3])])
    for shown, seen in ((noted, True), (group, False), (ExceptionGroup("x", [noted]), True)):
        assert (WORD in chain_text(shown)) is seen
    for suppressed in (True, False):
        error = RuntimeError("harmless")
        error.__context__ = ValueError(WORD)
        error.__suppress_context__ = suppressed
        assert (WORD in chain_text(error)) is not suppressed


def test_canary_guards_this_run(request: pytest.FixtureRequest) -> None:
    """A debug record, an error and a closed producer of this test are searched."""
    plugin: Any = request.config.pluginmanager.get_plugin("canary-guard")
    assert isinstance(plugin.guard, Guard)
    before = dict(plugin.guard.looked)
    logging.getLogger("aiokprod.tests").debug("harmless")
    KafkaError("harmless")
    after = plugin.guard.looked
    for where in ("log record", "error"):
        assert after[where] == before.get(where, 0) + 1
    assert plugin.guard.take() == []
    logging.getLogger("aiokprod.tests").debug(WORD)
    KafkaError(WORD)
    assert len(plugin.guard.take()) == 2


def test_canary_sees_debug_records_of_the_package_but_shows_them_to_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("aiokprod.tests.deep")
    assert wanted_level(logger) == logging.getLogger().level
    logger.debug("not wanted")
    assert caplog.records == []
    caplog.set_level(logging.DEBUG)
    logger.debug("wanted")
    caplog.set_level(logging.ERROR, logger="aiokprod.tests")
    logger.warning("not wanted")
    assert [entry.message for entry in caplog.records] == ["wanted"]


def test_canary_would_find_a_secret_that_a_producer_tells() -> None:
    guard = Guard()

    async def main() -> None:
        made = Producer(
            bootstrap_servers="b:1",
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username="u",
            sasl_password=Secret(WORD),
        )
        guard.producer(made)
        assert guard.take() == []
        object.__setattr__(made._config, "sasl_username", WORD)
        guard.producer(made)
        assert len(guard.take()) >= 2
        await made.close()

    asyncio.run(main())


HIDDEN = "hunter2+hunter2/?>"


def library(source: str, **names: Any) -> dict[str, Any]:
    """Return functions whose frames do not belong to a test."""
    exec(compile(source, "library", "exec"), names)
    return names


def raised(source: str, *arguments: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        library(source)["call"](*arguments)
    return caught.value


class Shown:
    def __repr__(self) -> str:
        return f"Shown({HIDDEN})"


class Broken:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "value",
    [
        HIDDEN,
        HIDDEN.encode(),
        bytearray(HIDDEN.encode()),
        {"headers": [("Authorization", HIDDEN)]},
        {HIDDEN: 1},
        Shown(),
        *(base64.b64encode(b"x" * before + HIDDEN.encode() + b"tail") for before in range(3)),
        base64.urlsafe_b64encode(HIDDEN.encode()),
        HIDDEN.encode().hex(),
        "hunter2%2Bhunter2%2F%3F%3E",
    ],
    ids=str,
)
def test_canary_sees_a_secret_in_local_variables_in_every_form(value: Any) -> None:
    error = raised("def call(local):\n    raise ValueError('harmless')", value)
    [leak] = found_in_frames(error, HIDDEN)
    assert "variable 'local' of call (library)" in leak
    assert found_in_frames(error, "another secret") == []


def test_canary_sees_frames_of_suppressed_contexts_causes_and_groups_but_not_of_tests() -> None:
    secret = HIDDEN
    plain = raised("def call():\n    raise ValueError('harmless')")
    assert found_in_frames(plain, secret) == []  # `secret` is a variable of this test
    for source in (
        "def call(local):\n try:\n  inner(local)\n except ValueError: raise KeyError from None",
        "def call(local):\n try:\n  inner(local)\n except ValueError as e: raise KeyError from e",
        "def call(local):\n try:\n  inner(local)\n except ValueError as e:\n"
        "  raise ExceptionGroup('', [e])",
    ):
        error = raised(source + "\ndef inner(deep):\n    raise ValueError", HIDDEN)
        assert any("'deep' of inner" in leak for leak in found_in_frames(error, HIDDEN))


def test_canary_sees_attributes_of_errors_and_survives_broken_reprs() -> None:
    coded = UnicodeEncodeError("utf-8", HIDDEN, 0, 1, "harmless")
    assert found_in_frames(coded, HIDDEN)
    noted = KafkaError("harmless")
    noted.hidden = HIDDEN  # type: ignore[attr-defined]
    assert found_in_frames(noted, HIDDEN)
    assert found_in_frames(raised("def call(x):\n    raise ValueError", Broken()), HIDDEN) == []


def test_canary_knows_a_key_by_its_middle_and_nothing_by_short_words() -> None:
    key = "-----BEGIN-----\n" + "\n".join(letter * 64 for letter in "abc") + "\n-----END-----\n"
    assert "a" * 48 in secret_forms(key)
    guard = Guard()
    guard.secrets.add("short")
    guard.secrets.add(None)
    assert guard.secrets.pattern is None


def test_canary_sees_frames_of_every_error_of_the_package_when_it_is_dropped_or_kept(
    request: pytest.FixtureRequest,
) -> None:
    """This includes an error that no `pytest.raises` catches."""
    guard: Guard = plugin_of(request).guard
    source = "def call(local, make):\n    raise make('harmless')"
    call = library(source)["call"]
    kept = []
    for keep in (False, True):
        secret = Secret(HIDDEN)
        try:
            call(HIDDEN, KafkaError)
        except KafkaError as error:
            if keep:
                kept.append(error)
        if keep:
            assert guard.take() == []
            guard.watched()
        assert ["'local' of call" in leak for leak in guard.take()] == [True]
        del secret


def plugin_of(request: pytest.FixtureRequest) -> CanaryPlugin:
    plugin = request.config.pluginmanager.get_plugin("canary-guard")
    assert isinstance(plugin, CanaryPlugin)
    return plugin


def test_canary_probe_finds_a_tap_that_is_gone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = plugin_of(request)
    assert plugin.probe() == []
    with monkeypatch.context() as patch:
        patch.setattr(logging.Logger, "callHandlers", lambda logger, record: None)
        assert plugin.probe() == ["log record"]
    with monkeypatch.context() as patch:
        patch.setattr(Guard, "look", lambda guard, where, text: None)
        patch.setattr(Guard, "frames", lambda guard, error: None)
        assert plugin.probe() == ["log record", "error", "frames of an error"]
    assert plugin.probe() == []


LATE = """
import pytest
from aiokprod import KafkaError
pytest_plugins = ("tests.secret_leak_check",)

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if {where}:
        KafkaError("a canary after the last test")
"""

SESSION = """
import pytest
from aiokprod import KafkaError
pytest_plugins = ("tests.secret_leak_check",)

@pytest.fixture(scope="session", autouse=True)
def late():
    yield
    KafkaError("a canary in a session fixture")
"""

BLIND = """
import pytest
from aiokprod import KafkaError
pytest_plugins = ("tests.secret_leak_check",)

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    KafkaError.__init__ = Exception.__init__
"""


def inner_run(folder: Path, conftest: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_inner.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    root = Path(__file__).parent.parent
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "worker"])
@pytest.mark.parametrize(
    ("conftest", "text"),
    [
        (LATE.format(where="True"), "canary outside of tests: error"),
        (SESSION, "a canary in a session fixture"),
        (BLIND, "canary not seen in: error"),
    ],
    ids=["after the last test", "session fixture", "blind"],
)
def test_canary_leak_after_the_last_test_fails_the_run(
    tmp_path: Path, conftest: str, text: str, options: tuple[str, ...]
) -> None:
    """Under pytest-xdist the exit status of a worker is lost, so the controller must judge."""
    run = inner_run(tmp_path, conftest, *options)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert text in run.stdout


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "worker"])
def test_canary_lets_a_clean_run_pass_and_fails_one_that_looked_at_nothing(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    clean = LATE.format(where="False")
    run = inner_run(tmp_path, clean, *options)
    assert run.returncode == pytest.ExitCode.OK, run.stdout + run.stderr
    asleep = clean.replace("if False:", "session.config.pluginmanager.get_plugin('canary-guard')"
                           ".probe = lambda: []\n    if False:")  # fmt: skip
    run = inner_run(tmp_path, asleep, *options)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert "canary not looked for anywhere" in run.stdout
