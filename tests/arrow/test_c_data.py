"""Import of tables: every structure is released exactly once, and invalid structures are
rejected."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any

import pytest

from aiokprod._arrow.c_data import (
    ArrowImportError,
    ArrowStreamError,
    Chunk,
    Field,
    InvalidRow,
    Layout,
    Stream,
    exports_array,
    open_table,
)
from tests.arrow.capsules import (
    ARRAY_RELEASE,
    SCHEMA_RELEASE,
    Batches,
    Column,
    binary,
    capsule,
    offsets,
    table,
)
from tests.hang import HANG_S


def only_chunk(exported: Any) -> Chunk:
    chunk = open_table(exported).next()
    assert chunk is not None
    return chunk


def bound(exported: Column, **roles: Any) -> Chunk:
    """Return the first chunk of the table with its columns bound. By default column 0 is the
    value."""
    stream = open_table(exported)
    chunk = stream.next()
    assert chunk is not None
    chunk.bind(Layout(stream.schema, **(roles or {"value": 0})))
    return chunk


# -- who releases a structure ---------------------------------------------------------------------


def test_schema_is_released_at_once_and_chunk_when_closed() -> None:
    exported = table(binary("value", b"a", b"bc"))
    stream = open_table(exported)
    assert exported.released == ["schema"]
    chunk = stream.next()
    assert chunk is not None
    assert len(chunk) == 2
    assert stream.next() is None
    stream.close()
    assert exported.released == ["schema"]
    chunk.close()
    chunk.close()
    assert exported.released == ["schema", "array"]
    assert len(chunk) == 0
    del chunk, stream
    assert exported.released == ["schema", "array"]


def test_chunk_that_nobody_took_is_released_with_the_stream() -> None:
    for close in (Stream.close, lambda stream: None):
        exported = table(binary("value", b"a"))
        stream = open_table(exported)
        close(stream)
        del stream
        assert exported.released == ["schema", "array"]


def test_chunk_is_released_when_forgotten() -> None:
    exported = table(binary("value", b"a"))
    only_chunk(exported)
    assert exported.released == ["schema", "array"]


def test_table_can_be_taken_once_only() -> None:
    exported = table(binary("value", b"a"))
    chunk = only_chunk(exported)
    with pytest.raises(ArrowImportError, match="released"):
        open_table(exported)
    chunk.close()
    assert exported.released == ["schema", "array"]


def test_stream_gives_all_batches_and_is_released_once() -> None:
    tables = [table(binary("value", b"a", b"b")), table(binary("value", b"c"))]
    exported = Batches(*tables)
    stream = open_table(exported)
    assert not stream.is_single
    assert stream.schema.children[0].name == "value"
    chunks = [stream.next(), stream.next()]
    assert [len(chunk) for chunk in chunks if chunk is not None] == [2, 1]
    assert stream.next() is None
    stream.close()
    stream.close()
    assert exported.released == 1
    assert stream.next() is None
    assert [one.released for one in tables] == [["schema"], []]
    del chunks
    assert [one.released for one in tables] == [["schema", "array"], ["array"]]
    with pytest.raises(ArrowImportError, match="released"):
        open_table(exported)


def test_stream_closed_while_it_is_read_is_released_when_the_read_ends() -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert leave.wait(HANG_S)

    batch = table(binary("value", b"a"))
    exported = Batches(batch, on_next=wait)
    stream = open_table(exported)
    results: list[Any] = []
    reader = threading.Thread(target=lambda: results.append(stream.next()))
    reader.start()
    assert entered.wait(HANG_S)
    with pytest.raises(RuntimeError, match="being read"):
        stream.next()
    stream.close()
    assert exported.released == 0
    leave.set()
    reader.join(HANG_S)
    assert results == [None]
    assert exported.released == 1
    assert batch.released == ["schema", "array"]


def test_stream_error_has_its_text_and_releases_everything() -> None:
    for text, shown in ((b"disk on fire", "disk on fire"), (None, "error 5")):
        exported = Batches(table(binary("value", b"a")), code=5, text=text)
        stream = open_table(exported)
        assert stream.next() is not None
        with pytest.raises(ArrowStreamError, match=shown):
            stream.next()
        stream.close()
        assert exported.released == 1
        refusing = Batches(table(binary("value", b"a")), schema_code=5, text=text)
        with pytest.raises(ArrowStreamError, match=shown):
            open_table(refusing)
        assert refusing.released == 1


# -- rejected structures --------------------------------------------------------------------------


class Exports:
    """An object whose `__arrow_c_array__` returns the constructor's argument."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.answer


GOOD = table(binary("value", b"a"))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        (),
        (1, 2),
        [capsule(GOOD.schema, b"arrow_schema"), capsule(GOOD.array, b"arrow_array")],
        (capsule(GOOD.schema, b"arrow_schema"), capsule(GOOD.array, b"wrong")),
        (capsule(GOOD.array, b"arrow_array"), capsule(GOOD.schema, b"arrow_schema")),
        (capsule(GOOD.schema, b"arrow_schema"), None),
    ],
)
def test_answer_that_is_no_pair_of_capsules_is_refused(answer: Any) -> None:
    with pytest.raises(ArrowImportError):
        open_table(Exports(answer))


@pytest.mark.parametrize("answer", [None, 1, capsule(GOOD.schema, b"arrow_schema")])
def test_answer_that_is_no_stream_is_refused(answer: Any) -> None:
    class OnlyStream:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return answer

    assert not exports_array(OnlyStream())
    with pytest.raises(ArrowImportError):
        open_table(OnlyStream())


@pytest.mark.parametrize("thing", [None, [], b"", {"value": [b"x"]}, 5])
def test_object_that_exports_nothing_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError):
        exports_array(thing)
    with pytest.raises(TypeError, match="neither"):
        open_table(thing)


def nested(depth: int) -> Column:
    inner = Column("x", "i", 0, [None, b""])
    for _ in range(depth):
        inner = Column("x", "+s", 0, [None], [inner])
    return inner


@pytest.mark.parametrize(
    "wrong",
    [
        Column("", "+s", 0, [None], schema__format=None),
        Column("", "+s", 0, [None], schema__n_children=3, schema__children=None),
        Column("", "+s", 0, [None], schema__n_children=-1),
        Column("", "+s", 0, [None], schema__n_children=1 << 40),
        Column("", "+s", 0, [None], array__length=-1),
        Column("", "+s", 0, [None], array__offset=-1),
        Column("", "+s", 0, [None], schema__release=SCHEMA_RELEASE()),
        Column("", "+s", 0, [None], array__release=ARRAY_RELEASE()),
        nested(40),
    ],
    ids=range(9),
)
def test_wrong_table_is_refused_and_released(wrong: Column) -> None:
    with pytest.raises(ArrowImportError):
        open_table(wrong)
    assert wrong.released.count("schema") <= 1
    assert wrong.released.count("array") <= 1


@pytest.mark.parametrize(
    "column",
    [
        binary("value", b"a", b"b", array__n_buffers=2),
        binary("value", b"a", b"b", array__buffers=None),
        binary("value", b"a", b"b", array__length=1),
        binary("value", b"a", b"b", array__offset=-1),
        binary("value", b"a", b"b", array__release=ARRAY_RELEASE()),
        binary("value", b"a", b"b", array__n_children=1),
        Column("value", "z", 2, [None, None, b""]),
        Column("value", "w:4", 2, [None]),
        Column("value", "vz", 2, [None, bytes(32)]),
        Column("value", "vz", 2, [None, bytes(32), b"data", None]),
        Column("value", "i", 2, [None, bytes(8)], dictionary=binary("", b"a"),
               array__dictionary=None),
        Column("value", "i", 2, [None, None], dictionary=binary("", b"a")),
    ],
    ids=range(12),
)  # fmt: skip
def test_wrong_column_is_refused(column: Column) -> None:
    exported = table(column, length=2)
    stream = open_table(exported)
    chunk = stream.next()
    assert chunk is not None
    with pytest.raises(ArrowImportError, match="value"):
        chunk.bind(Layout(stream.schema, value=0))
    with pytest.raises(ValueError, match="not bound"):
        chunk.row(0)
    chunk.close()
    assert exported.released == ["schema", "array"]


def test_batch_without_its_columns_is_refused() -> None:
    exported = table(binary("value", b"a"), array__n_children=0)
    with pytest.raises(ArrowImportError):
        bound(exported)
    exported = table(binary("value", b"a"))
    exported.array.children[0] = ctypes.POINTER(type(exported.array))()
    with pytest.raises(ArrowImportError, match="missing"):
        bound(exported)


@pytest.mark.parametrize(
    ("column", "roles"),
    [
        (Column("value", "i", 1, [None, bytes(4)]), {"value": 0}),
        (binary("x", b"a"), {"headers": 0}),
        (binary("x", b"a"), {"partition": 0}),
        (binary("x", b"a"), {"timestamp": 0}),
        (binary("x", b"a"), {"value": 1}),
        (binary("x", b"a"), {"value": -2}),
        *[
            (Column("x", index, 1, [None, bytes(8)], dictionary=binary("", b"a")), {role: 0})
            for index in ("n", "u", "f", "tsm:")
            for role in ("value", "key", "topic")
        ],
    ],
)
def test_layout_refuses_what_does_not_fit(column: Column, roles: dict[str, Any]) -> None:
    stream = open_table(table(column))
    with pytest.raises(ValueError, match=r"does not hold|there is no column"):
        Layout(stream.schema, **roles)


# -- cells ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        Column("value", "z", 1, [None, offsets(3, 1), b"abc"]),
        Column("value", "z", 1, [None, offsets(-2, 1), b"abc"]),
        Column("value", "z", 1, [b"\1", offsets(3, 1), b"abc"]),
        Column("value", "z", 1, [None, offsets(0, 1), None]),
        Column("value", "Z", 1, [None, struct.pack("=qq", 5, 4), b"abcdef"]),
        Column("value", "w:3", 1, [None, None]),
        Column("value", "vz", 1, [None, struct.pack("=i12x", -1), bytes(8)]),
        Column("value", "vz", 1, [None, struct.pack("=i4xii", 20, 0, 0), bytes(8)]),
        Column("value", "vz", 1, [None, struct.pack("=i4xii", 20, 1, 0), bytes(30),
                                  struct.pack("=q", 30)]),
        Column("value", "vz", 1, [None, struct.pack("=i4xii", 20, 0, 11), bytes(30),
                                  struct.pack("=q", 30)]),
        Column("value", "vz", 1, [None, struct.pack("=i4xii", 20, -1, 0), bytes(30),
                                  struct.pack("=q", 30)]),
        Column("value", "i", 1, [None, offsets(1)], dictionary=binary("", b"a")),
        Column("value", "i", 1, [None, offsets(-1)], dictionary=binary("", b"a")),
    ],
    ids=range(13),
)  # fmt: skip
def test_cell_that_points_nowhere_is_a_bad_row(bad: Column) -> None:
    with pytest.raises(InvalidRow, match="damaged"):
        bound(table(bad)).row(0)


@pytest.mark.parametrize(
    ("format", "packed", "number"),
    [
        ("c", "b", -5), ("C", "B", 250), ("s", "h", -300), ("S", "H", 65_000), ("i", "i", -70_000),
        ("I", "I", 2**32 - 1), ("l", "q", -(2**63)), ("L", "Q", 2**64 - 1), ("L", "Q", 5),
    ],
)  # fmt: skip
def test_integers_of_all_widths(format: str, packed: str, number: int) -> None:
    column = Column("partition", format, 2, [b"\2", struct.pack(f"=2{packed}", 1, number)])
    value = binary("value", b"a", b"b")
    chunk = bound(table(value, column), value=0, partition=1)
    assert chunk.row(0)[3] is None
    assert chunk.row(1)[3] == number


@pytest.mark.parametrize(
    ("format", "number", "milliseconds"),
    [
        ("tss:", 5, 5000), ("tsm:UTC", 5, 5), ("tsu:", 5999, 5), ("tsn:Europe/Oslo", 5_999_999, 5),
        ("tsu:", -1, -1), ("tss:", 2**62, 2**62 * 1000), ("l", 7, 7),
    ],
)  # fmt: skip
def test_timestamps_of_all_units(format: str, number: int, milliseconds: int) -> None:
    column = Column("timestamp", format, 1, [None, struct.pack("=q", number)])
    chunk = bound(table(binary("value", b"a"), column), value=0, timestamp=1)
    assert chunk.row(0)[4] == milliseconds


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1])
def test_unsigned_milliseconds_are_not_taken_for_negative_ones(number: int) -> None:
    column = Column("timestamp", "L", 1, [None, struct.pack("=Q", number)])
    chunk = bound(table(binary("value", b"a"), column), value=0, timestamp=1)
    assert chunk.row(0)[4] == number


def entries(*names: bytes, validity: bytes | None = None, ends: bytes | None = None) -> Column:
    """Return a headers column of one row."""
    key = binary("key", *names, format="u")
    value = binary("value", *(b"v" for _ in names))
    entry = Column("entry", "+s", len(names), [validity], [key, value])
    return Column("headers", "+l", 1, [None, ends or offsets(0, len(names))], [entry])


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        (entries(b"a", b"b", ends=offsets(0, 3)), "damaged"),
        (entries(b"a", ends=offsets(1, 0)), "damaged"),
        (entries(b"a", ends=offsets(-1, 0)), "damaged"),
        (entries(b"a", b"b", validity=b"\1"), r"headers\[1\] is null"),
        (entries(b"a", b"\xff"), "UTF-8"),
    ],
)
def test_bad_headers_are_a_bad_row(headers: Column, text: str) -> None:
    chunk = bound(table(binary("value", b"a"), headers), value=0, headers=1)
    with pytest.raises(InvalidRow, match=text):
        chunk.row(0)


def test_rows_outside_are_refused() -> None:
    chunk = bound(table(binary("value", b"a")))
    for row in (-1, 1):
        with pytest.raises(IndexError):
            chunk.row(row)
    chunk.close()
    with pytest.raises(ValueError, match="closed"):
        chunk.row(0)


def test_types_are_not_made_by_hand() -> None:
    for kind in (Chunk, Stream):
        for make in (kind, lambda kind=kind: kind.__new__(kind)):
            with pytest.raises(TypeError, match="open_table"):
                make()
    assert repr(Field("a", "i")) == "Field('a', 'i')"
