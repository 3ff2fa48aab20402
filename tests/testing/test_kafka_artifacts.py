"""The search for Java and for the jars of a release, with placeholders for the tools."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aiokprod.testing.kafka_artifacts import MissingTool, class_path, find_java


def tool(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up an empty folder as the search path of programs, and an empty cache."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setattr(shutil, "which", lambda name: found(programs / name), raising=True)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("AIOKPROD_CACHE", str(tmp_path / "cache"))
    return programs


def found(path: Path) -> str | None:
    return str(path) if path.exists() else None


@pytest.mark.parametrize(
    ("words", "usable"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('java version "21" 2023-09-19 LTS', True),
        ('openjdk version "11.0.20" 2023-07-18', False),
        ('java version "1.8.0_392"', False),
        ("no such thing", False),
    ],
)
def test_find_java_takes_17_or_newer(search_path: Path, words: str, usable: bool) -> None:
    java = tool(search_path, "java", f"echo '{words}' >&2")
    assert find_java() == (str(java) if usable else None)


def test_find_java_asks_java_home_first(
    search_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(search_path, "java", "echo 'version \"17.0.1\"' >&2")
    home = tool(tmp_path / "home" / "bin", "java", "echo 'version \"21.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == str(home)


def test_find_java_none_on_the_machine_none(search_path: Path) -> None:
    assert find_java() is None


def test_class_path_without_maven_says_so(search_path: Path) -> None:
    with pytest.raises(MissingTool, match="Maven"):
        class_path("9.9.9")


def test_class_path_fetches_once_and_whole(search_path: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    tool(
        search_path,
        "mvn",
        f"echo called >> {calls}\n"
        'for word; do case "$word" in -DoutputDirectory=*) out=${word#*=};; esac; done\n'
        'mkdir -p "$out" && touch "$out/kafka.jar"',
    )
    first, second = class_path("9.9.9"), class_path("9.9.9")
    assert first == second == str(tmp_path / "cache" / "9.9.9" / "*")
    assert (tmp_path / "cache" / "9.9.9" / "kafka.jar").exists()
    assert calls.read_text().count("called") == 1


def test_class_path_fetch_fails_quotes_maven_and_leaves_nothing(
    search_path: Path, tmp_path: Path
) -> None:
    tool(search_path, "mvn", "echo 'cannot resolve kafka'; exit 1")
    with pytest.raises(RuntimeError, match="cannot resolve kafka"):
        class_path("9.9.9")
    assert not (tmp_path / "cache" / "9.9.9").exists()
