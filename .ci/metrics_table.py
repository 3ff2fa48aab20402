"""Generates the table of metrics in docs/monitoring.md from the definitions in the code.

    python .ci/metrics_table.py

A test compares the table with the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aiokprod._metrics.definitions import rows

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "monitoring.md"
BEGIN: Final = "<!-- metrics -->\n"
END: Final = "\n<!-- end of metrics -->"
HEAD: Final = (
    "| name | kind | unit | also by | meaning | in Java |",
    "|---|---|---|---|---|---|",
)


def updated(text: str) -> str:
    """Return the text of the page with a newly generated table. Raises `ValueError` if a marker is
    missing."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError("monitoring.md: the markers of the table of metrics are missing")
    return before + BEGIN + "\n".join([*HEAD, *rows()]) + END + after


def main() -> None:
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
