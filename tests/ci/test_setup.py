"""How setup.py builds the extensions."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import Cython.Build
import pytest
import setuptools  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of `setup` and, under "cythonize", those of `cythonize`."""
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
    assert all(module.extra_compile_args[-1] == "-g0" for module in arguments["ext_modules"])
    assert arguments["cythonize"]["compiler_directives"] == {"auto_pickle": False}


def test_flags_of_the_environment_replace_those_of_the_build(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIOKPROD_CFLAGS", "-O1 -g")
    runpy.run_path("setup.py", run_name="__main__")
    assert arguments["ext_modules"][0].extra_compile_args == ["-O1", "-g"]
