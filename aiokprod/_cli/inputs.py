"""Reads records from files and standard input, in blocks with their positions."""

from __future__ import annotations

import csv
import io
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from aiokprod.errors import ConfigError

BLOCK: Final = 1 << 20
"""Bytes read at a time."""
ROWS: Final = 10_000
"""Rows of a block of CSV or Parquet."""


class InputError(Exception):
    """The input cannot be read or is not in the format; the text names the position."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position in the input at which a block ends.

    Attributes:
        file: name of the file, "-" for standard input.
        records: number of records of this file before the position.
        bytes: number of bytes of this file before the position; None for Parquet.
    """

    file: str
    records: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Block:
    """Some records.

    Attributes:
        values, keys: columns for `send_many`; `keys` is None if no record has a key.
        table: for `send_table` instead.
        count: number of records.
        end: where it ends.
    """

    count: int
    end: Place
    values: list[bytes | None] | None = None
    keys: list[bytes | None] | None = None
    table: Any = None


def blocks(options: Namespace) -> Iterator[Block]:
    """The records of all files in order.

    Raises:
        InputError: a file cannot be opened, or its content is not in the format.
    """
    for name in options.files or ["-"]:
        if options.format == "parquet":
            yield from _parquet(name)
            continue
        try:
            file = _standard_input() if name == "-" else open(name, "rb")  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{name}: {error.strerror}") from None
        try:
            yield from _READERS[options.format](name, file, options)
        except OSError as error:
            raise InputError(f"{name}: {error.strerror}") from None
        finally:
            file.close()


def _standard_input() -> BinaryIO:
    # The file is unbuffered: the thread that reads it may still be blocked when the interpreter
    # exits, and the interpreter aborts if that thread holds the lock of a buffer.
    return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


def check(options: Namespace) -> None:
    """Check the options for the format.

    Raises:
        ConfigError: they contradict each other, or pyarrow is missing.
    """
    given = {
        "--key-delimiter": (options.key_delimiter, ("lines",)),
        "--key-field": (options.key_field, ("jsonl", "csv")),
    }
    for name, (value, formats) in given.items():
        if value is not None and options.format not in formats:
            raise ConfigError(f"{name} applies to --format {' and '.join(formats)} only")
        if value == "":
            raise ConfigError(f"{name} is empty")
    if options.key is not None and (options.key_delimiter or options.key_field):
        raise ConfigError("--key is the key of every record: leave out the other option for keys")
    if not options.delimiter:
        raise ConfigError("--delimiter is empty")
    if options.format == "parquet":
        if "-" in (options.files or ["-"]):
            raise ConfigError("--format parquet cannot read standard input: name a file")
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise ConfigError("--format parquet needs pyarrow: pip install pyarrow") from None


def _lines(name: str, file: BinaryIO, options: Namespace) -> Iterator[Block]:
    end = options.delimiter.encode()
    separator = options.key_delimiter.encode() if options.key_delimiter else None
    fixed = options.key.encode() if options.key is not None else None
    total = position = 0
    for lines, size in _split(file, end):
        values: list[bytes | None] = list(lines)
        keys: list[bytes | None] | None = None
        if separator is not None:
            keys = []
            for number, line in enumerate(lines):
                key, found, value = line.partition(separator)
                if not found:
                    raise InputError(
                        f"{name}, record {total + number + 1}: no key delimiter "
                        f"{options.key_delimiter!r}"
                    )
                keys.append(key)
                values[number] = value
        elif fixed is not None:
            keys = [fixed] * len(values)
        total += len(values)
        position += size
        yield Block(len(values), Place(name, total, position), _nulls(values, options), keys)


def _split(file: BinaryIO, end: bytes) -> Iterator[tuple[list[bytes], int]]:
    """Yield lists of lines, each with the number of bytes that they take in the file. The last line
    may lack `end`."""
    rest = b""
    while data := file.read(BLOCK):  # reads what a pipe has now
        *lines, rest = (rest + data).split(end)
        if lines:
            yield lines, sum(map(len, lines)) + len(lines) * len(end)
    if rest:
        yield [rest], len(rest)


def _nulls(values: list[bytes | None], options: Namespace) -> list[bytes | None]:
    return [value or None for value in values] if options.null else values


def _raw(name: str, file: BinaryIO, options: Namespace) -> Iterator[Block]:
    data = file.read()
    keys: list[bytes | None] | None = None
    if options.key is not None:
        keys = [options.key.encode()]
    yield Block(1, Place(name, 1, len(data)), _nulls([data], options), keys)


def _jsonl(name: str, file: BinaryIO, options: Namespace) -> Iterator[Block]:
    """Check every line and send it unchanged."""
    total = position = 0
    fixed = options.key.encode() if options.key is not None else None
    for lines, size in _split(file, b"\n"):
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                document = json.loads(line)
            except ValueError:
                raise InputError(f"{name}, line {total + number + 1}: not JSON") from None
            values.append(line.rstrip(b"\r"))
            keys.append(
                fixed
                if options.key_field is None
                else _field(document, options.key_field, f"{name}, line {total + number + 1}")
            )
        total += len(lines)
        position += size
        if values:
            with_keys = keys if fixed is not None or options.key_field else None
            yield Block(len(values), Place(name, total, position), values, with_keys)


def _field(document: Any, field: str, place: str) -> bytes | None:
    if not isinstance(document, dict) or field not in document:
        raise InputError(f"{place}: no field {field!r}")
    value = document[field]
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _csv(name: str, file: BinaryIO, options: Namespace) -> Iterator[Block]:
    """A JSON object for each row, with the names of the first row."""
    counted = _Counted(file)
    text = io.TextIOWrapper(counted, encoding="utf-8-sig", newline="")  # type: ignore[type-var]
    fixed = options.key.encode() if options.key is not None else None
    rows = csv.DictReader(text, strict=True)
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    total = 0
    try:
        for row in rows:
            if None in row or None in row.values():
                raise InputError(
                    f"{name}, line {rows.line_num}: another number of fields than the first row"
                )
            values.append(json.dumps(row, ensure_ascii=False).encode())
            place = f"{name}, line {rows.line_num}"
            keys.append(
                fixed if options.key_field is None else _field(row, options.key_field, place)
            )
            total += 1
            if len(values) >= ROWS:
                yield _rows(name, values, keys, total, counted.taken, options)
                values, keys = [], []
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{name}, line {rows.line_num}: {error}") from None
    finally:
        text.detach()
    if values:
        yield _rows(name, values, keys, total, counted.taken, options)


def _rows(
    name: str,
    values: list[bytes | None],
    keys: list[bytes | None],
    total: int,
    taken: int,
    options: Namespace,
) -> Block:
    with_keys = keys if options.key is not None or options.key_field else None
    return Block(len(values), Place(name, total, taken), values, with_keys)


class _Counted(io.RawIOBase):
    """Counts the bytes that were read. They may include one buffer of bytes that are not used
    yet."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.taken = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.taken += len(data)
        return data

    def read1(self, size: int = -1) -> bytes:
        """See `read`. Called by `TextIOWrapper`."""
        return self.read(size)


def _parquet(name: str) -> Iterator[Block]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    total = 0
    try:
        with ParquetFile(name) as file:
            for table in file.iter_batches(batch_size=ROWS):
                total += table.num_rows
                yield Block(table.num_rows, Place(name, total, None), table=table)
    except (ArrowException, OSError) as error:
        raise InputError(f"{name}: {str(error).splitlines()[0]}") from None


_READERS: Final = {"lines": _lines, "raw": _raw, "jsonl": _jsonl, "csv": _csv}
