"""Our message declarations compared with Kafka's schemas (`schemas/`, from Kafka 4.3.1)."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from aiokprod._wire.headers import RequestHeader, ResponseHeader
from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    ZERO_UUID,
    FieldSpec,
    Struct,
    VersionRange,
    WireType,
    fields_of,
    int32,
    memoised,
    string,
)
from tests.wire.strategies import MESSAGES, versioned_id

SCHEMAS = Path(__file__).parent / "schemas"

ALL: list[type[Message]] = [*MESSAGES, RequestHeader, ResponseHeader]


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def schema_default(field: dict[str, Any], spec: FieldSpec) -> object:
    default = field.get("default")
    if spec.array:
        return ()
    if spec.element is not None:
        return spec.element()
    if spec.wire_type in (WireType.STRING, WireType.RECORDS):
        implicit = None if spec.wire_type is WireType.RECORDS else ""
        return {"null": None, None: implicit}.get(default, default)
    if spec.wire_type is WireType.BOOL:
        return str(default).lower() == "true"
    if spec.wire_type is WireType.BYTES:
        return b""
    if spec.wire_type is WireType.UUID:
        return ZERO_UUID
    return int(str(default or 0), 0)


def effective(versions: VersionRange, *outer: VersionRange) -> VersionRange | None:
    """Return the intersection of a version range with all the others, or None if it is empty."""
    low = max(versions.low, *(other.low for other in outer))
    high = min(versions.high, *(other.high for other in outer))
    return VersionRange(low, high) if low <= high else None


def assert_matches(
    cls: type[Struct],
    fields: list[dict[str, Any]],
    common: dict[str, list[dict[str, Any]]],
    valid: VersionRange,
) -> None:
    specs = fields_of(cls)
    assert [spec.name for spec in specs] == [snake(field["name"]) for field in fields]
    for spec, field in zip(specs, fields, strict=True):
        where = f"{cls.__name__}.{spec.name}"
        kafka_type = field["type"]
        element_type = kafka_type.removeprefix("[]")
        assert spec.array == kafka_type.startswith("[]"), where
        versions = VersionRange.parse(field["versions"])
        assert spec.versions == versions, where
        nullable = VersionRange.parse(field.get("nullableVersions", "none"))
        assert effective(spec.nullable, versions, valid) == effective(nullable, versions, valid)
        assert spec.tag == field.get("tag"), where
        assert field.get("taggedVersions", field["versions"]) == field["versions"], where
        assert spec.ignorable == bool(field.get("ignorable", False)), where
        assert spec.compact == ("flexibleVersions" not in field), where
        assert spec.default == schema_default(field, spec), where
        if element_type[0].isupper():
            assert spec.element is not None, where
            assert spec.element.__name__ == element_type
            assert_matches(spec.element, field.get("fields") or common[element_type], common, valid)
        else:
            assert spec.wire_type.value == element_type, where


@pytest.mark.parametrize("message", ALL, ids=versioned_id)
def test_message_is_declared_as_in_kafkas_schema(message: type[Message]) -> None:
    schema = json.loads((SCHEMAS / f"{message.__name__}.json").read_text())
    valid = VersionRange.parse(schema["validVersions"])
    assert (message.min_version, message.max_version) == valid
    flexible = VersionRange.parse(schema["flexibleVersions"])
    assert message.flexible_version == (None if flexible.high < 0 else flexible.low)
    assert message.api_key == schema.get("apiKey", -1)
    if schema.get("latestVersionUnstable"):
        assert message.unstable_version == valid.high
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}
    assert_matches(message, schema["fields"], common, valid)


def test_every_schema_is_implemented() -> None:
    assert {path.stem for path in SCHEMAS.glob("*.json")} == {cls.__name__ for cls in ALL}


@pytest.mark.parametrize("message", ALL, ids=versioned_id)
def test_struct_fields_are_all_declared_with_a_wire_type(message: type[Message]) -> None:
    def walk(cls: type[Struct]) -> None:
        assert cls.__doc__
        assert len(fields_of(cls)) == len(dataclasses.fields(cls))
        tags = [spec.tag for spec in fields_of(cls) if spec.tag is not None]
        assert len(set(tags)) == len(tags)
        for spec in fields_of(cls):
            assert (spec.element is not None) == (spec.wire_type is WireType.STRUCT)
            if spec.element is not None:
                walk(spec.element)

    walk(message)


@pytest.mark.parametrize(
    ("text", "covered", "not_covered"),
    [
        ("3+", [3, 4, 100], [0, 2]),
        ("0-12", [0, 12], [13]),
        ("4", [4], [3, 5]),
        ("none", [], [0, 1]),
    ],
)
def test_version_range_reads_kafkas_notation(
    text: str, covered: list[int], not_covered: list[int]
) -> None:
    versions = VersionRange.parse(text)
    assert all(versions.covers(version) for version in covered)
    assert not any(versions.covers(version) for version in not_covered)


def test_fields_of_keeps_order_and_names() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Pair(Struct):
        first: int = int32("1+", default=7)
        second: str = string(ignorable=True)

    first, second = fields_of(Pair)
    assert (first.name, first.wire_type, first.default) == ("first", WireType.INT32, 7)
    assert (second.name, second.wire_type, second.ignorable) == ("second", WireType.STRING, True)
    assert Pair() == Pair(7, "")


def test_memoised_calls_once() -> None:
    calls: list[int] = []

    @memoised
    def double(value: int) -> int:
        calls.append(value)
        return 2 * value

    assert (double(2), double(2), double(3)) == (4, 4, 6)
    assert calls == [2, 3]
