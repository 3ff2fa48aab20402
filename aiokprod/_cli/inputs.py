"""Reads records from files and standard input. Returns blocks with their positions."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import sys
from argparse import Namespace
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from aiokprod.errors import ConfigError

BLOCK: Final = 1 << 20
"""Bytes read at a time."""
ROWS: Final = 10_000
"""Maximum number of rows in a block of CSV or Parquet."""
FIELD: Final = 64 << 20
"""Maximum number of characters in a CSV field, which ends the search for a missing closing quote.
Brokers limit records to much less."""

SHOWN: Final = 10
"""Maximum number of malformed records that are described individually."""
NAMED: Final = 20
"""Maximum number of columns that an error lists."""


class InputError(Exception):
    """The input cannot be read or does not have the format. The text names the position."""


class Malformed(Exception):
    """One record does not have the format; later records may have it. The text contains no data."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position in the input at which a block ends.

    Attributes:
        file: name of the file, "-" for standard input.
        records: number of records of this file before the position; with jsonl, number of lines.
        bytes: number of bytes of this file before the position; None for Parquet.
    """

    file: str
    records: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A malformed record that is not sent. `text` names its position and the reason."""

    file: str
    record: int
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive records of one file.

    Attributes:
        values, keys: columns for `send_many`; `keys` is None if no record has a key.
        table: a table for `send_table`, instead of `values` and `keys`.
        count: number of records, without malformed records.
        end: the position at which the block ends.
        numbers: number of each record in the file; None if they are consecutive up to `end`.
        skipped_count: number of malformed records in the block. The first malformed record of a
            file always begins a new block.
        skipped: the first malformed records, at most `SHOWN`.
    """

    count: int
    end: Place
    values: list[bytes | None] | None = None
    keys: list[bytes | None] | None = None
    table: Any = None
    numbers: Sequence[int] | None = None
    skipped_count: int = 0
    skipped: Sequence[Skipped] = ()


class _Builder:
    """Builds the blocks of one file from its records. With `--keep-going`, malformed records are
    skipped."""

    def __init__(self, name: str, options: Namespace) -> None:
        self._name = name
        self._skips = options.keep_going
        self._has_skipped = False
        self._fixed = options.key.encode() if options.key is not None else None
        self._with_keys = options.key is not None or options.key_delimiter or options.key_field
        self._begin()

    def _begin(self) -> None:
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._numbers = array("Q")
        self._skipped: list[Skipped] = []
        self._skipped_count = 0

    def __len__(self) -> int:
        return len(self._values) + self._skipped_count

    def add(self, number: int, value: bytes | None, key: bytes | None) -> None:
        """Add a record."""
        self._values.append(value)
        self._keys.append(key if self._fixed is None else self._fixed)
        self._numbers.append(number)

    def malformed(self, number: int, where: str, reason: str, taken: int) -> Iterator[Block]:
        """Skip a malformed record. For the first malformed record of the file, first yield a block
        of the records that were added.

        Args:
            where: position of the record, such as "line 7".
            taken: number of bytes of the file before the record.

        Raises:
            InputError: the option `--keep-going` is not given.
        """
        text = f"{self._name}, {where}: {reason}"
        if not self._has_skipped:
            yield from self.take(number - 1, taken)
        if not self._skips:
            raise InputError(f"{text}; --keep-going skips such records")
        self._has_skipped = True
        self._skipped_count += 1
        if len(self._skipped) < SHOWN:
            self._skipped.append(Skipped(self._name, number, text))

    def take(self, total: int, taken: int) -> Iterator[Block]:
        """Yield the block of the added and skipped records, if there are any.

        Args:
            total, taken: number of records and bytes of the file up to the current position.
        """
        count = len(self._values)
        if not len(self):
            return
        gaps = count and (self._numbers[0] != total - count + 1)
        block = Block(
            count,
            Place(self._name, total, taken),
            self._values,
            self._keys if self._with_keys else None,
            numbers=self._numbers if gaps else None,
            skipped_count=self._skipped_count,
            skipped=self._skipped,
        )
        self._begin()
        yield block


def blocks(options: Namespace) -> Iterator[Block]:
    """Yield the records of all files in order.

    Raises:
        InputError: a file cannot be opened, or its content does not have the format.
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
    # The file must be unbuffered. The thread that reads it may still be blocked when the
    # interpreter exits, and the interpreter aborts if that thread holds the lock of a buffer.
    return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


def check(options: Namespace) -> None:
    """Check the options for the format.

    Raises:
        ConfigError: options contradict each other, or pyarrow is missing.
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
    if options.key_delimiter:
        yield from _keyed_lines(name, file, end, options)
        return
    fixed = options.key.encode() if options.key is not None else None
    total = position = 0
    for lines, size in _split(file, end):
        values = _nulls(list(lines), options)
        keys: list[bytes | None] | None = [fixed] * len(lines) if fixed is not None else None
        total += len(lines)
        position += size
        yield Block(len(lines), Place(name, total, position), values, keys)


def _keyed_lines(name: str, file: BinaryIO, end: bytes, options: Namespace) -> Iterator[Block]:
    separator = options.key_delimiter.encode()
    builder = _Builder(name, options)
    total = position = 0
    for lines, size in _split(file, end):
        after = position + size
        for line in lines:
            total += 1
            key, found, value = line.partition(separator)
            if found:
                builder.add(total, value or None if options.null else value, key)
            else:
                reason = f"no key delimiter {options.key_delimiter!r}"
                yield from builder.malformed(total, f"record {total}", reason, position)
            position += len(line) + len(end)
        position = after  # the last line may lack `end`
        yield from builder.take(total, position)


def _split(file: BinaryIO, end: bytes) -> Iterator[tuple[list[bytes], int]]:
    """Yield lists of lines, each with the number of bytes that the lines take in the file. The last
    line may lack `end`."""
    rest = b""
    while data := file.read(BLOCK):  # a pipe returns the data that is available
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
    """Check every line and yield it as a value, without a carriage return at its end."""
    builder = _Builder(name, options)
    total = position = 0
    for lines, size in _split(file, b"\n"):
        after = position + size
        for line in lines:
            total += 1
            if line.strip():
                try:
                    key = _json_key(line, options.key_field)
                except Malformed as error:
                    yield from builder.malformed(total, f"line {total}", str(error), position)
                else:
                    builder.add(total, line.rstrip(b"\r"), key)
            position += len(line) + 1
        position = after  # the last line may lack the line break
        yield from builder.take(total, position)


def _json_key(line: bytes, field: str | None) -> bytes | None:
    """Check that a line is a JSON document, and return the key in its field.

    Raises:
        Malformed: the line is not JSON, or the document does not have the field.
    """
    try:
        document = json.loads(line)
    except json.JSONDecodeError as error:
        # The text after a colon may quote the document.
        reason = error.msg.partition(": ")[0].removesuffix(" starting at").removesuffix(" at")
        raise Malformed(f"not JSON, column {error.pos + 1}: {reason}") from None
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8, byte {error.start + 1} of the line") from None
    except RecursionError:
        raise Malformed("not checked: objects or arrays are nested too deeply") from None
    except ValueError:
        raise Malformed("not checked: a number has too many digits") from None
    if field is None:
        return None
    if not isinstance(document, dict):
        raise Malformed(f"no field {field!r}: it is not a JSON object")
    if field not in document:
        raise Malformed(f"no field {field!r}")
    value = document[field]
    if value is None:
        return None
    try:
        return (value if isinstance(value, str) else json.dumps(value)).encode()
    except UnicodeEncodeError:
        raise Malformed(f"field {field!r} is not valid Unicode") from None


def _csv(name: str, file: BinaryIO, options: Namespace) -> Iterator[Block]:
    """Yield a JSON object for each row, with the names in the first row."""
    csv.field_size_limit(max(csv.field_size_limit(), FIELD))
    lines = _Lines(file)
    rows = csv.reader(lines, strict=True)
    builder = _Builder(name, options)
    total = 0
    columns = _columns(name, rows, lines, options)
    field = options.key_field
    at = {column: index for index, column in enumerate(columns)}
    while columns:
        before, line = lines.taken, lines.count
        lines.row.clear()
        try:
            row = next(rows, None)
            if row is None:
                break
            if not row:
                continue
            value = _object(columns, row)
        except (csv.Error, Malformed) as error:
            total += 1
            if isinstance(error, csv.Error):
                _skip_row(name, lines)
            where = f"line {lines.count}"
            if lines.count > line + 1:
                where = f"lines {line + 1} to {lines.count}"
            yield from builder.malformed(total, where, str(error), before)
        else:
            total += 1
            builder.add(total, value, None if field is None else row[at[field]].encode())
        if len(builder) >= ROWS:
            yield from builder.take(total, lines.taken)
    yield from builder.take(total, lines.taken)


def _skip_row(name: str, lines: _Lines) -> None:
    """Read the rest of a row that the strict reader rejected. A quoted field after the error may
    span further lines, which must not be read as rows."""
    lenient = csv.reader(itertools.chain(tuple(lines.row), lines))
    try:
        next(lenient, None)
    except csv.Error as error:
        raise InputError(
            f"{name}, line {lines.count}: {error}; the row is not terminated"
        ) from None


def _columns(name: str, rows: Any, lines: _Lines, options: Namespace) -> list[str]:
    """Return the names in the first row; empty for an empty file."""
    try:
        columns: list[str] = next((row for row in rows if row), [])
        "".join(columns).encode()
    except csv.Error as error:
        raise InputError(f"{name}, line {lines.count}: {error}") from None
    except UnicodeEncodeError:
        raise InputError(f"{name}, line {lines.count}: not UTF-8") from None
    field = options.key_field
    if columns and field is not None and field not in columns:
        listed = ", ".join(map(repr, columns[:NAMED])) + (", ..." if columns[NAMED:] else "")
        raise InputError(
            f"{name}, line {lines.count}: no column {field!r}: the columns are {listed}"
        )
    return columns


def _object(columns: list[str], row: list[str]) -> bytes:
    if len(row) != len(columns):
        fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
        raise Malformed(f"{fields}, the first row has {len(columns)}")
    try:
        return json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Malformed("not UTF-8") from None


class _Lines:
    """The lines of a file as text. Bytes that are not UTF-8 become surrogates.

    Attributes:
        taken: number of bytes in the lines that were returned.
        count: number of lines that were returned.
        row: the lines of the current row; the reader of rows clears this list.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = _Readable(file)
        self._text = io.TextIOWrapper(
            self._file,  # type: ignore[type-var]
            encoding="utf-8-sig",
            errors="surrogateescape",
            newline="",
        )
        self.taken = 0
        self.count = 0
        self.row: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline()
        if not line:
            raise StopIteration
        self.count += 1
        self.row.append(line)
        if not self.taken and self._file.head == codecs.BOM_UTF8:
            self.taken = len(codecs.BOM_UTF8)
        self.taken += len(line if line.isascii() else line.encode(errors="surrogateescape"))
        return line


class _Readable(io.RawIOBase):
    """Reads a file and stores its first three bytes. `close` does not close the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.head = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if len(self.head) < 3:
            self.head = (self.head + data)[:3]
        return data

    def read1(self, size: int = -1) -> bytes:
        """Read like `read`, for `TextIOWrapper`."""
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
