"""Checks the schema of a DataFrame: it must have the columns of Spark's Kafka sink.

The checks use only `typeName()` and the fields of Spark's types, so that this module can be
imported and tested without pyspark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aiokprod.errors import ConfigError

VALUE: Final = "value"
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"

_BYTES: Final = ("binary", "string")
ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int", "smallint"),
    "headers": (HEADERS_TYPE,),
    "timestamp": ("timestamp", "timestamp_ntz", "bigint"),
}
"""Accepted types by column, with Spark's names. The preferred type is the first."""

_CASTS: Final = {
    "key": "col('key').cast('string')",
    "value": "col('value').cast('string')  # or to_json(struct('*')) for a whole row",
    "topic": "col('topic').cast('string')",
    "partition": "col('partition').cast('int')",
    "timestamp": "col('timestamp').cast('timestamp')",
    "headers": "array(struct(lit('name').alias('key'), col('x').cast('binary').alias('value')))",
}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Position of each column in the DataFrame, or None if it is missing.

    Attributes:
        header_key_first: True if the order of the header fields is (key, value) and not (value,
            key).
        timestamp_type: Spark's name of the timestamp column's type.
    """

    value: int
    key: int | None = None
    topic: int | None = None
    partition: int | None = None
    headers: int | None = None
    timestamp: int | None = None
    header_key_first: bool = True
    timestamp_type: str | None = None


def check_schema(schema: Any, *, topic: str | None, unknown_columns: str) -> SinkColumns:
    """Find and check the columns.

    Args:
        schema: a pyspark `StructType`.
        topic: the option topic, or None if it is not set.
        unknown_columns: "error" or "ignore".

    Raises:
        ConfigError: a column is missing, unknown or has the wrong type. The text names the column
            and the fix.
    """
    places: dict[str, int] = {}
    for number, field in enumerate(schema.fields):
        if field.name not in ALLOWED:
            _unknown(field.name, unknown_columns)
        elif field.name in places:
            raise ConfigError(f"column {field.name!r} is there twice: drop or rename one")
        else:
            _check_type(field.name, field.dataType)
            places[field.name] = number
    if VALUE not in places:
        have = ", ".join(repr(field.name) for field in schema.fields) or "no columns"
        raise ConfigError(
            f"column 'value' is missing, the DataFrame has {have}: select the bytes to send as "
            "'value', e.g. df.select(to_json(struct('*')).alias('value'))"
        )
    if topic is None and "topic" not in places:
        raise ConfigError(
            "no topic: set option('topic', ...), or add a string column 'topic' to the DataFrame"
        )
    key_first = True
    if "headers" in places:
        names = schema.fields[places["headers"]].dataType.elementType.fieldNames()
        key_first = names[0] == "key"
    stamp = places.get("timestamp")
    return SinkColumns(
        **places,
        header_key_first=key_first,
        timestamp_type=None if stamp is None else _name(schema.fields[stamp].dataType),
    )


def _unknown(name: str, unknown_columns: str) -> None:
    if name.lower() in ALLOWED:
        raise ConfigError(
            f"column {name!r} differs only in case from {name.lower()!r}: rename it, "
            f"df.withColumnRenamed({name!r}, {name.lower()!r})"
        )
    if unknown_columns == "error":
        raise ConfigError(
            f"column {name!r} is none of {', '.join(ALLOWED)}: drop it, pack it into 'value', or "
            "set option('unknownColumns', 'ignore') to leave it out as Spark's Kafka sink does"
        )


def _name(data_type: Any) -> str:
    return str(data_type.simpleString())


def _check_type(column: str, data_type: Any) -> None:
    found = _name(data_type)
    fits = _headers_fit(data_type) if column == "headers" else found in ALLOWED[column]
    if not fits:
        raise ConfigError(
            f"column {column!r} has type {found}, allowed is {' or '.join(ALLOWED[column])}: "
            f"cast it, {_CASTS[column]}"
        )


def _headers_fit(data_type: Any) -> bool:
    """Return True if the type is an array of structs of a string `key` and a binary `value`, in any
    order."""
    if data_type.typeName() != "array" or data_type.elementType.typeName() != "struct":
        return False
    fields = {field.name: _name(field.dataType) for field in data_type.elementType.fields}
    return fields == {"key": "string", "value": "binary"}
