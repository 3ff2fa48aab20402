"""How `setup.py` builds the extension modules."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import Cython.Build
import pytest
import setuptools  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments of `setup`. The key "cythonize" holds the arguments of `cythonize`."""
    found: dict[str, Any] = {}

    def cythonize(modules: list[setuptools.Extension], **options: Any) -> list[Any]:
        found["cythonize"] = options
        return modules

    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("AIOKPROD_CFLAGS", raising=False)
    monkeypatch.setattr(Cython.Build, "cythonize", cythonize)
    monkeypatch.setattr(setuptools, "setup", found.update)
    runpy.run_path("setup.py", run_name="__main__")
    return found


def test_extensions_are_compiled_on_every_core(arguments: dict[str, Any]) -> None:
    assert arguments["options"]["build_ext"]["parallel"] == len(os.sched_getaffinity(0))


def test_every_source_is_compiled_the_largest_first(arguments: dict[str, Any]) -> None:
    sources = [Path(module.sources[0]) for module in arguments["ext_modules"]]
    assert sorted(sources) == sorted(
        path.relative_to(ROOT) for path in ROOT.rglob("aiokprod/**/*.pyx")
    )
    sizes = [source.stat().st_size for source in sources]
    assert sizes == sorted(sizes, reverse=True)


def test_extensions_have_no_debug_information_and_no_pickling(arguments: dict[str, Any]) -> None:
    assert all("-g0" in module.extra_compile_args for module in arguments["ext_modules"])
    assert arguments["cythonize"]["compiler_directives"] == {"auto_pickle": False, "binding": False}


def test_only_what_runs_for_every_record_is_optimized_for_speed(arguments: dict[str, Any]) -> None:
    levels: dict[str, set[str]] = {}
    for module in arguments["ext_modules"]:
        levels.setdefault(module.extra_compile_args[0], set()).add(Path(module.sources[0]).stem)
    assert levels["-O3"] == {"append", "bulk_append", "record_fields", "serialization"}
    assert levels["-O2"] == {"batch", "table_appender"}
    assert set(levels) == {"-O3", "-O2", "-Os"}


def test_a_missing_compiler_is_reported_in_one_line(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = arguments["cmdclass"]["build_ext"](setuptools.Distribution())
    command.compiler = SimpleNamespace(compiler_so=["no-such-compiler", "-O2"])
    with pytest.raises(SystemExit) as caught:
        command.build_extensions()
    text = str(caught.value)
    assert "there is no C compiler (no-such-compiler); install " in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("tool", "advice"),
    [
        ("apt-get", "apt-get install gcc libc6-dev python3-dev"),
        ("dnf", "dnf install gcc python3-devel"),
        ("apk", "apk add gcc musl-dev python3-dev"),
        ("pacman", "pacman -S gcc"),
        (None, "gcc and Python's headers (python3-dev)"),
    ],
)
def test_the_advice_names_the_package_of_the_system(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tool: str | None, advice: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name == tool else None)
    command = arguments["cmdclass"]["build_ext"]
    assert command.build_extensions.__globals__["compiler_advice"]() == advice


def test_missing_headers_are_reported_in_one_line(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    command = arguments["cmdclass"]["build_ext"](setuptools.Distribution())
    command.compiler = SimpleNamespace(compiler_so=[sys.executable])
    with pytest.raises(SystemExit, match=r"Python\.h is missing; install "):
        command.build_extensions()


def test_the_long_description_has_no_relative_links(arguments: dict[str, Any]) -> None:
    text = arguments["long_description"]
    assert text.startswith("# aiokprod")
    assert re.findall(r"\]\((?!https?://)", text) == []


def test_flags_of_the_environment_replace_those_of_the_build(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIOKPROD_CFLAGS", "-O1 -g")
    runpy.run_path("setup.py", run_name="__main__")
    assert arguments["ext_modules"][0].extra_compile_args == ["-O1", "-g"]
