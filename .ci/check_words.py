"""Finds words and phrases that the project does not use, in documents, comments and strings.

    python .ci/check_words.py

The words, each with what to write instead, are in `.ci/words.txt`. Of Markdown files everything but
code is searched, of Python and Cython files comments, docstrings and other strings. Of tests and
the Makefile only comments and docstrings are searched, because other strings are data, patterns or
names of other projects. Code in backticks is not searched.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WORDS: Final = ROOT / ".ci" / "words.txt"
SEARCHED: Final = (
    "*.md", "*.py", "Makefile", "docs", "aiokprod", "benchmarks", "examples", "tests", ".ci",
    ".github",
)  # fmt: skip
QUOTED: Final = ROOT / "docs" / "reports"
"""Reports quote the output of the runs they describe."""
KINDS: Final = {".md", ".py", ".pyi", ".pyx", ".pxd"}
WITHOUT_STRINGS: Final = {"Makefile", "tests"}
"""Files and folders of which only comments and docstrings are searched."""

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


def searched(text: str, kind: str, *, strings: bool = True) -> str:
    """The text with everything but prose masked; line breaks stay. Without `strings`, also strings
    that are no docstrings."""
    if kind == ".md":
        text = _FENCED.sub(_blank, text)
    else:
        kept, end = [], 0
        for match in _TEXT.finditer(text):
            prose = strings or match[0].startswith(("#", "'''", '"""'))
            kept += [
                re.sub(r"[^\n]", " ", text[end : match.start()]),
                match[0] if prose else _blank(match),
            ]
            end = match.end()
        text = _REPLACED.sub(_blank, "".join(kept))
    return _CODE.sub(_blank, text)


def unwanted_words(
    text: str, kind: str, words: list[tuple[re.Pattern[str], str]], *, strings: bool = True
) -> list[str]:
    """One line for each finding: its line number, the word and what to write instead."""
    prose = searched(text, kind, strings=strings)
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
        path
        for path in found
        if (path.suffix in KINDS or path.name == "Makefile") and not path.is_relative_to(QUOTED)
    )


def main() -> int:
    words = vocabulary(WORDS.read_text(encoding="utf-8"))
    status = 0
    for path in files():
        name = path.relative_to(ROOT)
        text = path.read_text(encoding="utf-8")
        strings = name.parts[0] not in WITHOUT_STRINGS
        for finding in unwanted_words(text, path.suffix, words, strings=strings):
            print(f"{name}:{finding}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
