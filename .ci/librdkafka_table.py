"""Generates the table of settings in docs/migration/confluent-kafka.md from the code.

    python .ci/librdkafka_table.py

A test compares the table with the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aiokprod._compat.librdkafka_settings import rows

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "migration" / "confluent-kafka.md"
BEGIN: Final = "<!-- settings -->\n"
END: Final = "\n<!-- end of settings -->"
HEAD: Final = ("| librdkafka | | aiokprod | remark |", "|---|---|---|---|")


def updated(text: str) -> str:
    """Return the text of the page with a newly generated table. Raises `ValueError` if a marker is
    missing."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError("confluent-kafka.md: the markers of the table of settings are missing")
    return before + BEGIN + "\n".join([*HEAD, *rows()]) + END + after


def main() -> None:
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
