"""The wheels for musl and free-threaded Python depend on cramjam instead of lz4."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / ".ci" / "lz4_dependency.py"))
SETTINGS = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def dependencies(settings: str) -> list[str]:
    found: list[str] = tomllib.loads(settings)["project"]["dependencies"]
    return found


def test_one_line_changes_and_can_be_changed_back() -> None:
    changed = SCRIPT["select"](SETTINGS, "cramjam")
    assert set(dependencies(SETTINGS)) - set(dependencies(changed)) == {"lz4>=4.3"}
    assert set(dependencies(changed)) - set(dependencies(SETTINGS)) == {"cramjam>=2.12"}
    assert SCRIPT["select"](changed, "cramjam") == changed
    assert SCRIPT["select"](changed, "lz4") == SETTINGS


def test_other_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="0 dependencies for LZ4"):
        SCRIPT["select"](SETTINGS.replace('    "lz4>=4.3",\n', ""), "lz4")


@pytest.mark.parametrize("arguments", [[], ["brotli"], ["lz4", "cramjam"]])
def test_wrong_arguments_change_nothing(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SCRIPT["main"](arguments) == 2
    assert list(tmp_path.iterdir()) == []


def test_every_python_without_an_lz4_wheel_is_named() -> None:
    (override,) = tomllib.loads(SETTINGS)["tool"]["cibuildwheel"]["overrides"]
    assert override["select"] == ["*-musllinux*", "cp314t-*"]
    assert override["before-build"] == "python .ci/lz4_dependency.py cramjam"
