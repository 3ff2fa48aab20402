"""Generates the tables in docs/errors.md: the classes of `aiokprod.errors`, and the error codes.

    python .ci/errors_tables.py

`tests/test_docs_errors.py` compares the tables with the code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiokprod import errors

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "errors.md"
CLASSES: Final = (
    "| class | base | `outcome` | `retriable` | error codes | what happened |",
    "|---|---|---|---|---|---|",
)
CODES: Final = (
    "| code | name | class | `outcome` | `retriable` | meaning |",
    "|---:|---|---|---|---|---|",
)


def classes() -> list[type[errors.KafkaError]]:
    """Return the public error classes in the order of the module, base classes first."""
    from aiokprod import errors

    found = [
        value
        for name, value in vars(errors).items()
        if name in errors.__all__
        and isinstance(value, type)
        and issubclass(value, errors.KafkaError)
    ]
    return sorted(found, key=lambda cls: inspect.getsourcelines(cls)[1])


def _sentence(text: str) -> str:
    """Return the first sentence in one line."""
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


def _truth(value: bool) -> str:
    return "yes" if value else "no"


def class_rows() -> Iterator[str]:
    """Yield a row for each class, with the values of an error without a code."""
    from aiokprod.errors import Code

    for cls in classes():
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        codes = [f"`{code.name}`" for code in Code if code.row.exception == cls.__name__ and code]
        if cls.default_code is not None and f"`{cls.default_code.name}`" not in codes:
            codes.append(f"`{cls.default_code.name}`")
        named = "all others" if cls.__name__ == "BrokerError" else ", ".join(codes)
        yield (
            f"| [`{cls.__name__}`](#{cls.__name__.lower()}) | {bases} | "
            f"{cls.default_outcome.name} | {_truth(cls.default_retriable)} | {named} | "
            f"{_sentence(cls.__doc__ or '')} |"
        )


def code_rows() -> Iterator[str]:
    """Yield a row for each Kafka error code."""
    from aiokprod.errors import Code

    for code in Code:
        row = code.row
        if code is Code.NONE:
            continue
        meaning = f"{row.text}: {row.hint}" if row.hint else row.text
        yield (
            f"| {row.number} | `{row.name}` | [`{row.exception}`](#{row.exception.lower()}) | "
            f"{row.outcome.name} | {_truth(row.retriable)} | {meaning} |"
        )


def updated(text: str) -> str:
    """Return the text of the page with newly generated tables. Raises `ValueError` if a marker is
    missing."""
    for name, head, rows in (("classes", CLASSES, class_rows()), ("codes", CODES, code_rows())):
        before, found, rest = text.partition(f"<!-- {name} -->\n")
        _, ended, after = rest.partition(f"<!-- end of {name} -->")
        if not found or not ended:
            raise ValueError(f"errors.md: the markers of the table of {name} are missing")
        text = f"{before}{found}" + "\n".join([*head, *rows, ended]) + after
    return text


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
