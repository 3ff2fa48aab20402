"""The columns of a table. Every error names the column, its type, the expected type and the fix."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from aiokprod._arrow.c_data import Field, Layout, open_table
from aiokprod._client.table_schema import ROLES, layout_of, type_name
from aiokprod.errors import ConfigError

NAMES: dict[str, str | None] = {role: role for role in ROLES}


def field(kind: pa.DataType) -> Field:
    stream = open_table(pa.record_batch({"c": pa.array([], kind)}))
    found: Field = stream.schema.children[0]
    return found


def layout(columns: dict[str, pa.DataType], topic: str | None = "t", /, **names: Any) -> Layout:
    batch = pa.record_batch({name: pa.array([], kind) for name, kind in columns.items()})
    return layout_of(open_table(batch).schema, topic, NAMES | names)


ENTRY = pa.struct([("key", pa.string()), ("value", pa.binary())])
GOOD: dict[str, list[pa.DataType]] = {
    "key": [pa.binary(), pa.large_string(), pa.binary(3), pa.dictionary(pa.int8(), pa.string())],
    "value": [pa.string(), pa.string_view(), pa.binary_view(), pa.large_binary(), pa.null()],
    "headers": [
        pa.list_(ENTRY), pa.large_list(ENTRY), pa.map_(pa.string(), pa.binary()), pa.null(),
        pa.list_(pa.struct([("value", pa.string()), ("key", pa.large_string())])),
        pa.list_(pa.struct([("key", pa.dictionary(pa.int8(), pa.string())), ("value", pa.null())])),
    ],
    "timestamp": [pa.timestamp("ns", "UTC"), pa.timestamp("s"), pa.int64(), pa.int32(), pa.null()],
    "partition": [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.null()],
    "topic": [pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.large_string())],
}  # fmt: skip
BAD: dict[str, list[pa.DataType]] = {
    "key": [pa.int64(), pa.bool_(), pa.list_(pa.binary()), pa.dictionary(pa.int8(), pa.int32())],
    "value": [pa.float64(), pa.struct([("a", pa.int8())]), pa.date32(), pa.decimal128(5, 2)],
    "headers": [
        pa.string(), ENTRY, pa.list_(pa.string()), pa.list_(ENTRY, 2), pa.list_view(ENTRY),
        pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())])),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("x", pa.binary())])),
        pa.map_(pa.binary(), pa.binary()),
    ],
    "timestamp": [pa.date32(), pa.date64(), pa.float64(), pa.string(), pa.duration("ms"),
                  pa.time32("s")],
    "partition": [pa.string(), pa.float32(), pa.dictionary(pa.int8(), pa.int32()), pa.bool_()],
    "topic": [pa.binary(), pa.int32(), pa.list_(pa.string())],
}  # fmt: skip


@pytest.mark.parametrize(
    ("role", "kind"), [(role, kind) for role, kinds in GOOD.items() for kind in kinds], ids=str
)
def test_type_that_fits_is_taken(role: str, kind: pa.DataType) -> None:
    found = layout({"value": pa.binary(), role: kind}, None if role == "topic" else "t")
    assert getattr(found, role) == (0 if role == "value" else 1)


@pytest.mark.parametrize(
    ("role", "kind"), [(role, kind) for role, kinds in BAD.items() for kind in kinds], ids=str
)
def test_type_that_does_not_fit_is_refused_by_name(role: str, kind: pa.DataType) -> None:
    names = {f"{role}": "c"}
    columns = {"value": pa.binary(), "c": kind}
    with pytest.raises(ConfigError) as info:
        layout(columns, None if role == "topic" else "t", **names)
    text = str(info.value)
    assert text.startswith(f"column 'c' is {type_name(field(kind))}, but the {role} of a record")
    assert ": " in text.removeprefix("column 'c' is ")  # the fix


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.int32(), "int32"),
        (pa.timestamp("us", "Europe/Oslo"), "timestamp[us, tz=Europe/Oslo]"),
        (pa.timestamp("s"), "timestamp[s]"),
        (pa.binary(4), "fixed_size_binary[4]"),
        (pa.list_(pa.int8()), "list<int8>"),
        (pa.list_(pa.int8(), 2), "fixed_size_list<int8>[2]"),
        (ENTRY, "struct<key: string, value: binary>"),
        (pa.dictionary(pa.int32(), pa.string()), "dictionary<int32, string>"),
        (pa.decimal128(5, 2), "decimal(5,2)"),
        (pa.map_(pa.string(), pa.binary()), "map<struct<key: string, value: binary>>"),
        (pa.date32(), "date32"),
    ],
    ids=str,
)
def test_types_have_the_names_of_pyarrow(kind: pa.DataType, name: str) -> None:
    assert type_name(field(kind)) == name


def test_unknown_type_shows_its_format() -> None:
    assert type_name(Field("c", "+ud:0", [Field("a", "i")])) == "union"
    assert type_name(Field("c", "zz" * 50)) == f"of unknown format {'zz' * 10!r}"


@pytest.mark.parametrize("index", ["n", "u", "f", "tsm:"])
def test_dictionary_needs_integers_as_indices(index: str) -> None:
    """Only integer indices can be compared with the length of the dictionary."""
    column = Field("value", index, (), Field("", "z"))
    with pytest.raises(ConfigError, match=r"column 'value' is dictionary<"):
        layout_of(Field("", "+s", [column]), "t", dict.fromkeys(ROLES, "value"))


def test_value_is_required() -> None:
    with pytest.raises(ConfigError, match=r"no column 'value' for the value, only 'a', 'key'"):
        layout({"a": pa.binary(), "key": pa.binary()})
    with pytest.raises(ConfigError, match="no column 'payload' for the value"):
        layout({"value": pa.binary()}, value="payload")
    with pytest.raises(ConfigError, match="value_column must be the name of a column, not None"):
        layout({"value": pa.binary()}, value=None)
    with pytest.raises(ConfigError, match="only no columns"):
        layout({})


def test_columns_that_bear_default_names_may_be_missing_others_not() -> None:
    found = layout({"value": pa.binary()})
    assert (found.key, found.headers, found.timestamp, found.partition, found.topic) == (-1,) * 5
    with pytest.raises(ConfigError, match=r"no column 'id' for the key.*key_column="):
        layout({"value": pa.binary()}, key="id")
    with pytest.raises(ConfigError, match="key_column must be the name of a column, not 5"):
        layout({"value": pa.binary()}, key=5)


def test_none_is_no_column_even_if_there_is_one() -> None:
    found = layout({"value": pa.binary(), "key": pa.float64()}, key=None)
    assert found.key == -1


def test_name_that_differs_in_case_is_refused_with_the_hint() -> None:
    with pytest.raises(ConfigError, match=r"column 'Key'; for the key it must be called 'key'"):
        layout({"value": pa.binary(), "Key": pa.binary()})


def test_column_that_is_there_twice_is_refused() -> None:
    batch = pa.record_batch([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"])
    with pytest.raises(ConfigError, match="2 columns 'value'"):
        layout_of(open_table(batch).schema, "t", NAMES)


def test_topic_is_needed_once() -> None:
    with pytest.raises(ConfigError, match=r"no topic: give send_table a topic, or the table"):
        layout({"value": pa.binary()}, None)
    assert layout({"value": pa.binary(), "topic": pa.float64()}, "t").topic == -1
    assert layout({"value": pa.binary(), "to": pa.string()}, None, topic="to").topic == 1


def test_single_column_is_no_table() -> None:
    stream = open_table(pa.chunked_array([pa.array([b"a"])]))
    with pytest.raises(ConfigError, match="a single column of binary"):
        layout_of(stream.schema, "t", NAMES)


def test_long_lists_of_columns_are_cut() -> None:
    with pytest.raises(ConfigError, match="'c19' and 5 more"):
        layout({f"c{number}": pa.binary() for number in range(25)})
