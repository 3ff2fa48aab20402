"""Finds the columns of a table and checks their types. Errors name the column and the fix.

This module reads only the schema, not the rows. Type names are those of pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from aiokprod._arrow.c_data import Field, Layout
from aiokprod.errors import ConfigError

ROLES: Final = ("key", "value", "headers", "timestamp", "partition", "topic")
"""The parts of a record that a column may contain. By default the column has the same name."""

_MAX_SHOWN = 20

_NAMES: Final = {
    "n": "null", "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16",
    "i": "int32", "I": "uint32", "l": "int64", "L": "uint64", "e": "halffloat", "f": "float",
    "g": "double", "z": "binary", "Z": "large_binary", "vz": "binary_view", "u": "string",
    "U": "large_string", "vu": "string_view", "tdD": "date32", "tdm": "date64",
    "tts": "time32[s]", "ttm": "time32[ms]", "ttu": "time64[us]", "ttn": "time64[ns]",
    "tDs": "duration[s]", "tDm": "duration[ms]", "tDu": "duration[us]", "tDn": "duration[ns]",
    "+l": "list", "+L": "large_list", "+vl": "list_view", "+vL": "large_list_view",
    "+s": "struct", "+m": "map", "+r": "run_end_encoded",
}  # fmt: skip
_UNITS: Final = {"s": "s", "m": "ms", "u": "us", "n": "ns"}

_BYTES: Final = "binary or string (of any layout)"
# Role → (check of the type, expected type, fix).
_RULES: Final[Mapping[str, tuple[Callable[[Field], bool], str, str]]] = {
    "key": (lambda f: f.is_bytes, _BYTES, "cast it to binary or string"),
    "value": (
        lambda f: f.is_bytes,
        _BYTES,
        "cast it to binary or string, or encode the row (e.g. as JSON) into such a column",
    ),
    "headers": (
        lambda f: f.is_headers,
        "list<struct<key: string, value: binary>> or map<string, binary>",
        "build such a column; header keys are text, header values bytes or text",
    ),
    "timestamp": (
        lambda f: f.is_timestamp or f.is_int,
        "timestamp[s, ms, us or ns], or int64 of milliseconds since 1970",
        "cast it to timestamp[ms]",
    ),
    "partition": (lambda f: f.is_int, "an integer, preferably int32", "cast it to int32"),
    "topic": (
        lambda f: f.is_text,
        "string (of any layout, dictionary-encoded too)",
        "cast it to string, or name one topic for all rows",
    ),
}


def type_name(field: Field) -> str:
    """Return the type name of pyarrow."""
    name = _plain_name(field)
    if field.dictionary is not None:
        return f"dictionary<{name}, {type_name(field.dictionary)}>"
    return name


def _plain_name(field: Field) -> str:
    code = field.format
    if code.startswith("w:"):
        return f"fixed_size_binary[{code[2:]}]"
    if code.startswith("+w:"):
        return f"fixed_size_list<{_inside(field)}>[{code[3:]}]"
    if code.startswith("ts") and code[2:3] in _UNITS:
        unit, _, zone = code[2:].partition(":")
        return f"timestamp[{_UNITS[unit]}{', tz=' + zone if zone else ''}]"
    if code.startswith("d:"):
        return f"decimal({code[2:]})"
    if code.startswith("+u"):
        return "union"
    name = _NAMES.get(code)
    if name is None:
        return f"of unknown format {code[:_MAX_SHOWN]!r}"
    return f"{name}<{_inside(field)}>" if field.children else name


def _inside(field: Field) -> str:
    if field.format == "+s":
        return ", ".join(f"{child.name}: {type_name(child)}" for child in field.children)
    return ", ".join(type_name(child) for child in field.children)


def layout_of(
    schema: Field,
    topic: str | None,
    names: Mapping[str, str | None],
    serialized: Collection[str] = (),
) -> Layout:
    """Find the columns of a table and check their types.

    Args:
        names: the column name of each role, or None if the role has no column. Except for the
            value, a column may be missing if it has the name of its role.
        topic: the topic of all rows; the topic column is then ignored.
        serialized: the parts ("key", "value") that serializers convert. Serializers get text as
            str.

    Raises:
        ConfigError: a column is missing, occurs twice or has the wrong type.
    """
    if not schema.is_struct:
        raise ConfigError(
            f"the table is a single column of {type_name(schema)}; send_table takes a table of "
            "named columns, e.g. a record batch or a data frame"
        )
    found = {}
    for role in ROLES:
        if role == "topic" and topic is not None:
            continue
        position = _find(schema, role, names[role])
        if position is not None:
            _check_type(schema.children[position], role)
            found[role] = position
    if topic is None and "topic" not in found:
        raise ConfigError(
            f"no topic: give send_table a topic, or the table a column {names['topic']!r} of "
            f"topics (it has {_shown(schema)})"
        )
    text = {role for role, position in found.items() if schema.children[position].is_text}
    return Layout(
        schema,
        **found,
        decode_key="key" in text and "key" in serialized,
        decode_value="value" in text and "value" in serialized,
    )


def _find(schema: Field, role: str, name: str | None) -> int | None:
    if name is None and role != "value":
        return None
    if not isinstance(name, str):
        raise ConfigError(f"{role}_column must be the name of a column, not {name!r}")
    columns = [child.name for child in schema.children]
    if columns.count(name) > 1:
        raise ConfigError(f"the table has {columns.count(name)} columns {name!r}: rename them")
    if name in columns:
        return columns.index(name)
    for column in columns:
        if column.lower() == name.lower():
            raise ConfigError(
                f"the table has a column {column!r}; for the {role} it must be called {name!r} "
                f"exactly: rename it, or pass {role}_column={column!r}"
            )
    if role == "value" or name != role:
        raise ConfigError(
            f"the table has no column {name!r} for the {role}, only {_shown(schema)}: rename one, "
            f"or pass {role}_column="
        )
    return None


def _shown(schema: Field) -> str:
    names = [repr(child.name) for child in schema.children]
    more = len(names) - _MAX_SHOWN
    return (", ".join(names[:_MAX_SHOWN]) or "no columns") + (f" and {more} more" * (more > 0))


def _check_type(column: Field, role: str) -> None:
    fits, wanted, fix = _RULES[role]
    if column.is_null or fits(column):
        return
    raise ConfigError(
        f"column {column.name!r} is {type_name(column)}, but the {role} of a record needs "
        f"{wanted}: {fix}"
    )
