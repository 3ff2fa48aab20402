"""Finds words and phrases that the project does not use, in documents, comments and strings.

    python .ci/check_words.py

The words, each with what to write instead, are in `.ci/words.txt`. Of Markdown files everything but
code is searched, of Python and Cython files comments, docstrings and other strings. Code in
backticks is not searched.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WORDS: Final = ROOT / ".ci" / "words.txt"
SEARCHED: Final = ("*.md", "docs", "aiokprod", "benchmarks", "examples", ".ci", ".github")
QUOTED: Final = ROOT / "docs" / "reports"
"""Reports quote the output of the runs they describe."""
KINDS: Final = {".md", ".py", ".pyi", ".pyx", ".pxd"}

_TEXT: Final = re.compile(
    r"'''(?:\\.|[^\\])*?'''"
    r'|"""(?:\\.|[^\\])*?"""'
    r"|'(?:\\.|[^'\\\n])*'"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|#[^\n]*",
    re.DOTALL,
)
_FENCED: Final = re.compile(r"^\s*```.*?^\s*```\s*?$", re.DOTALL | re.MULTILINE)
_CODE: Final = re.compile(r"``[^`]*``|`[^`\n]*`")
_REPLACED: Final = re.compile(r"\{[^{}\n]*\}")
"""Expressions in f-strings."""


def vocabulary(text: str) -> list[tuple[re.Pattern[str], str]]:
    """Lines `regular expression -> what to write instead`; `#` begins a comment."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, instead = line.partition(" -> ")
            # A phrase may continue on the next line, in a comment after another `#`.
            spaced = pattern.strip().replace(" ", r"(?:[ \t]+|[ \t]*\n[ \t]*(?:# ?)?)")
            found.append((re.compile(rf"\b(?:{spaced})\b", re.IGNORECASE), instead.strip()))
    return found


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", match[0])


def searched(text: str, kind: str) -> str:
    """The text with everything but prose masked; line breaks stay."""
    if kind == ".md":
        text = _FENCED.sub(_blank, text)
    else:
        kept, end = [], 0
        for match in _TEXT.finditer(text):
            kept += [re.sub(r"[^\n]", " ", text[end : match.start()]), match[0]]
            end = match.end()
        text = _REPLACED.sub(_blank, "".join(kept))
    return _CODE.sub(_blank, text)


def unwanted_words(text: str, kind: str, words: list[tuple[re.Pattern[str], str]]) -> list[str]:
    """One line for each finding: its line number, the word and what to write instead."""
    prose = searched(text, kind)
    found = [
        (prose.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), instead)
        for pattern, instead in words
        for match in pattern.finditer(prose)
    ]
    return [f'{line}: "{word}": write {instead}' for line, word, instead in sorted(found)]


def files() -> list[Path]:
    """The files to search."""
    found: list[Path] = []
    for name in SEARCHED:
        for path in ROOT.glob(name):
            found += [path] if path.is_file() else path.rglob("*")
    return sorted(
        path for path in found if path.suffix in KINDS and not path.is_relative_to(QUOTED)
    )


def main() -> int:
    words = vocabulary(WORDS.read_text(encoding="utf-8"))
    status = 0
    for path in files():
        for finding in unwanted_words(path.read_text(encoding="utf-8"), path.suffix, words):
            print(f"{path.relative_to(ROOT)}:{finding}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
