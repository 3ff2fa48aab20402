"""Programs in the docs pass mypy --strict, which detects calls that are not awaited, among others.

`test_docs.py` compiles all examples, and other tests run those that need no real brokers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = {
    "applications.md": ["Serving", "Handlers"],
    "errors.md": ["Reacting to an error"],
    "observability.md": ["Several producers or applications in a process"],
    "testing.md": ["With pytest", "Broker failures", "Web services", "Clusters in other processes"],
    "tuning.md": ["Settings by topic", "Three starting points"],
}
"""Sections with complete examples. The sections of a page form one program, except in
testing.md."""


def programs() -> dict[str, str]:
    """Map the name of a module to its code."""
    found: dict[str, str] = {}
    for page, headings in PROGRAMS.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for number, heading in enumerate(headings):
            section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
            blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
            assert blocks, heading
            name = page.removesuffix(".md") + (f"_{number}" if page == "testing.md" else "")
            found[name] = found.get(name, "") + "\n".join(blocks)
    return found


def errors_of_mypy(folder: Path, code: dict[str, str]) -> list[str]:
    files = []
    for name, text in code.items():
        files.append(folder / f"docs_{name}.py")
        files[-1].write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, files)],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def test_programs_in_the_docs_pass_mypy(tmp_path: Path) -> None:
    assert errors_of_mypy(tmp_path, programs()) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("testing_3", "await kafka_cluster.kill(", "kafka_cluster.kill("),
        ("testing_3", "await kafka_cluster.leader_of(", "kafka_cluster.leader_of("),
        ("tuning", "SERVICE: ProducerSettings =", "SERVICE ="),
    ],
)
def test_mypy_finds_what_was_wrong(tmp_path: Path, name: str, old: str, new: str) -> None:
    code = programs()[name]
    assert old in code
    assert errors_of_mypy(tmp_path, {name: code.replace(old, new)})
