"""Finds words and phrases that the project does not use, in documents, comments and strings.

    python .ci/check_words.py

`.ci/words.txt` contains the words and their replacements. The script searches all text except code
in Markdown files, and comments, docstrings and other strings in Python and Cython files. In tests
and the Makefile, it searches only comments and docstrings, because other strings are data, patterns
or names of other projects. Code in backticks is not searched.
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
"""The folder of reports. They quote program output, so they are not searched."""
KINDS: Final = {".md", ".py", ".pyi", ".pyx", ".pxd"}
WITHOUT_STRINGS: Final = {"Makefile", "tests"}
"""Files and folders in which only comments and docstrings are searched."""

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
"""Matches expressions in f-strings."""


def vocabulary(text: str) -> list[tuple[re.Pattern[str], str]]:
    """Parse lines of the form `regular expression -> replacement`. `#` begins a comment."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, instead = line.partition(" -> ")
            # A phrase may continue on the next line. In a comment, that line begins with `#`.
            spaced = pattern.strip().replace(" ", r"(?:[ \t]+|[ \t]*\n[ \t]*(?:# ?)?)")
            found.append((re.compile(rf"\b(?:{spaced})\b", re.IGNORECASE), instead.strip()))
    return found


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", match[0])


def searched(text: str, kind: str, *, strings: bool = True) -> str:
    """Return the text with everything except prose masked, and with all line breaks. Without
    `strings`, strings other than docstrings are masked too."""
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
    """Return a line for each finding: the line number, the word and its replacement."""
    prose = searched(text, kind, strings=strings)
    found = [
        (prose.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), instead)
        for pattern, instead in words
        for match in pattern.finditer(prose)
    ]
    return [f'{line}: "{word}": write {instead}' for line, word, instead in sorted(found)]


def files() -> list[Path]:
    """Return the files to search."""
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
