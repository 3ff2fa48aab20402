"""Selects the package for LZ4 in the metadata of the wheel that is built next.

    python .ci/lz4_dependency.py lz4|cramjam

lz4 has no wheels for musl and for free-threaded Python, so the wheels for these platforms depend on
cramjam instead. Environment markers cannot express this condition.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

REQUIREMENTS: Final = {"lz4": "lz4>=4.3", "cramjam": "cramjam>=2.12"}
_LINE: Final = re.compile(r'^    "(?:lz4|cramjam)>=[\d.]+",$', re.MULTILINE)


def select(settings: str, package: str) -> str:
    """Return the text of pyproject.toml with this package in `dependencies`.

    Raises:
        ValueError: `dependencies` does not have exactly one line for the two packages.
    """
    head, begin, rest = settings.partition("\ndependencies = [\n")
    body, end, tail = rest.partition("\n]\n")
    changed, count = _LINE.subn(f'    "{REQUIREMENTS[package]}",', body)
    if count != 1:
        raise ValueError(f"pyproject.toml: {count} dependencies for LZ4 instead of one")
    return head + begin + changed + end + tail


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in REQUIREMENTS:
        print("usage: python .ci/lz4_dependency.py lz4|cramjam", file=sys.stderr)
        return 2
    path = Path("pyproject.toml")
    path.write_text(select(path.read_text(encoding="utf-8"), arguments[0]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
