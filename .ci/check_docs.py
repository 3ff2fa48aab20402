"""Checks the lengths of lines and the links in Markdown files.

    python .ci/check_docs.py

A line of prose may have at most 100 characters (tables, headings and code are not checked). A
relative link must name a file of the repository and, after `#`, one of its headings.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WIDTH: Final = 100
SKIPPED: Final = {"build", "dist", "venv"}
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^\s*```")
_UNWRAPPED: Final = re.compile(r"^(\||#|<!--|!?\[[^\]]*\]\(\S+\)$)")


def prose(text: str) -> list[tuple[int, str]]:
    """Return the lines outside code blocks with their numbers."""
    lines, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            lines.append((number, line))
    return lines


def without_code(line: str) -> str:
    return re.sub(r"`[^`]*`", "``", line)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub creates for the headings of a file."""
    found: set[str] = set()
    for _, line in prose(text):
        if line.startswith("#"):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def long_lines(text: str) -> list[str]:
    return [
        f"{number}: {len(line)} characters, at most {WIDTH}"
        for number, line in prose(text)
        if len(line) > WIDTH and not _UNWRAPPED.match(line)
    ]


def broken_links(path: Path, text: str) -> list[str]:
    found = []
    for number, line in prose(text):
        for target in _LINK.findall(without_code(line)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            if not file.exists() or not file.is_relative_to(ROOT):
                found.append(f"{number}: {target}: no such file")
            elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
                found.append(f"{number}: {target}: no such heading")
    return found


def markdown() -> list[Path]:
    """Return the Markdown files of the project, without those in environments and caches."""

    def ours(path: Path) -> bool:
        folders = path.relative_to(ROOT).parts[:-1]
        return not any(
            name in SKIPPED or (name.startswith(".") and name != ".github") for name in folders
        )

    return [path for path in sorted(ROOT.rglob("*.md")) if ours(path)]


def main() -> int:
    status = 0
    for path in markdown():
        text = path.read_text(encoding="utf-8")
        for finding in long_lines(text) + broken_links(path, text):
            print(f"{path.relative_to(ROOT)}:{finding}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
