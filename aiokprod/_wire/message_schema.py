"""Declares messages as dataclasses. Each field has a wire type and the versions in which it exists.

    @dataclass(frozen=True, slots=True)
    class PartitionProduceData(Struct):
        index: int = int32()
        records: Records | None = records()

The declaration of a field has the same parts as a field in Kafka's JSON message definitions: wire
type, versions in which the field exists, versions in which it may be null, default, tag. Versions
are written in Kafka's notation: ``"3+"``, ``"0-12"``, ``"4"``. Fields without an explicit default
use Java's default: 0, False, "", zero UUID, empty array. `decode_plan` and `encode_plan` build
decoders and encoders from the declarations.

Source: Kafka `clients/src/main/resources/common/message/README.md`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import ClassVar, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

from aiokprod._wire.primitives import BytesLike

Records: TypeAlias = BytesLike | Sequence[BytesLike]
"""Record batches: one buffer, or a sequence of chunks. Decoded values are memoryviews."""

ZERO_UUID: Final = bytes(16)
"""The null UUID. A UUID is represented by its 16 bytes, most significant first."""

_HIGHEST: Final = 0x7FFF
_METADATA_KEY: Final = "wire"


class Struct:
    """Base class of all structs that are declared with the functions below."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


S = TypeVar("S", bound=Struct)


class WireType(Enum):
    """Type of a field, or of the elements of an array field; values are Kafka's type names."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"
    STRUCT = "struct"


INTEGERS: Final = {
    WireType.INT8: "b",
    WireType.INT16: "h",
    WireType.INT32: "i",
    WireType.INT64: "q",
}
"""Format characters of the `struct` module for the integer types."""


class VersionRange(NamedTuple):
    """Versions `low` to `high`, both included; empty if `low` > `high`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Parse Kafka's notation: "3+", "0-12", "4" or "none"."""
        if text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), _HIGHEST)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def covers(self, version: int) -> bool:
        """Return True if `version` is in the range."""
        return self.low <= version <= self.high


NEVER: Final = VersionRange(0, -1)


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """The declaration of one field of a message.

    Attributes:
        wire_type: type of the value, or of the elements if `array` is set.
        array: True if the field is a sequence.
        element: class of the value or of the elements if `wire_type` is STRUCT, else None.
        versions: versions in which the field exists.
        nullable: versions in which the field may be null.
        tag: number of the tagged field, or None if the field is always written.
        ignorable: True if encoding silently drops a value other than the default in versions
            without the field; if False, it raises `UnsupportedVersion`.
        compact: True if lengths are compact in flexible versions; False only in the request header.
        default: value in versions without the field.
        name: attribute name.
    """

    wire_type: WireType
    versions: VersionRange
    default: object
    array: bool = False
    element: type[Struct] | None = None
    nullable: VersionRange = NEVER
    tag: int | None = None
    ignorable: bool = False
    compact: bool = True
    name: str = ""

    def length_width(self, flexible: bool) -> int:
        """Return the size of the value's length prefix in bytes; 0 = compact."""
        if flexible and self.compact:
            return 0
        return 2 if self.wire_type is WireType.STRING and not self.array else 4

    def element_width(self, flexible: bool) -> int:
        """Return the size of the length prefix of each string in an array in bytes; 0 = compact."""
        return 0 if flexible and self.compact else 2


_P = ParamSpec("_P")
_T = TypeVar("_T")


def memoised(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Like `functools.cache`, whose stub loses the function's signature and rejects classes."""
    return cast(Callable[_P, _T], cache(function))


@memoised
def fields_of(cls: type[Struct]) -> tuple[FieldSpec, ...]:
    """Return the field declarations of a struct in wire order."""
    return tuple(
        dataclasses.replace(field.metadata[_METADATA_KEY], name=field.name)
        for field in cls.__dataclass_fields__.values()
        if _METADATA_KEY in field.metadata
    )


def _declare(
    default: _T,
    wire_type: WireType,
    versions: str,
    *,
    array: bool = False,
    element: type[Struct] | None = None,
    nullable: str = "none",
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> _T:
    spec = FieldSpec(
        wire_type=wire_type,
        versions=VersionRange.parse(versions),
        default=default,
        array=array,
        element=element,
        nullable=VersionRange.parse(nullable),
        tag=tag,
        ignorable=ignorable,
        compact=compact,
    )
    return dataclasses.field(default=default, metadata={_METADATA_KEY: spec})


def int8(
    versions: str = "0+", *, default: int = 0, tag: int | None = None, ignorable: bool = False
) -> int:
    """Declare an int8, -2⁷ to 2⁷-1."""
    return _declare(default, WireType.INT8, versions, tag=tag, ignorable=ignorable)


def int16(
    versions: str = "0+", *, default: int = 0, tag: int | None = None, ignorable: bool = False
) -> int:
    """Declare an int16, -2¹⁵ to 2¹⁵-1."""
    return _declare(default, WireType.INT16, versions, tag=tag, ignorable=ignorable)


def int32(
    versions: str = "0+", *, default: int = 0, tag: int | None = None, ignorable: bool = False
) -> int:
    """Declare an int32, -2³¹ to 2³¹-1."""
    return _declare(default, WireType.INT32, versions, tag=tag, ignorable=ignorable)


def int64(
    versions: str = "0+", *, default: int = 0, tag: int | None = None, ignorable: bool = False
) -> int:
    """Declare an int64, -2⁶³ to 2⁶³-1."""
    return _declare(default, WireType.INT64, versions, tag=tag, ignorable=ignorable)


def boolean(
    versions: str = "0+", *, default: bool = False, tag: int | None = None, ignorable: bool = False
) -> bool:
    """Declare a boolean: one byte, 0 = False, any other value = True."""
    return _declare(default, WireType.BOOL, versions, tag=tag, ignorable=ignorable)


def uuid(versions: str = "0+", *, tag: int | None = None, ignorable: bool = False) -> bytes:
    """Declare a UUID of 16 bytes; all zero = null."""
    return _declare(ZERO_UUID, WireType.UUID, versions, tag=tag, ignorable=ignorable)


def string(versions: str = "0+", *, default: str = "", ignorable: bool = False) -> str:
    """Declare a string: UTF-8, up to 32767 bytes, not null."""
    return _declare(default, WireType.STRING, versions, ignorable=ignorable)


def nullable_string(
    versions: str = "0+",
    *,
    nullable: str | None = None,
    default: str | None = "",
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> str | None:
    """Declare a nullable string: UTF-8, up to 32767 bytes; None = null.

    `nullable` limits the versions in which null is allowed.
    """
    return _declare(
        default,
        WireType.STRING,
        versions,
        nullable=nullable or versions,
        tag=tag,
        ignorable=ignorable,
        compact=compact,
    )


def byte_string(versions: str = "0+") -> bytes:
    """Declare bytes: up to 2³¹-1, not null; decoding copies them."""
    return _declare(b"", WireType.BYTES, versions)


def records(versions: str = "0+") -> Records | None:
    """Declare record batches; None = null. Neither encoding nor decoding copies them."""
    return _declare(None, WireType.RECORDS, versions, nullable=versions)


def struct(element: type[S], versions: str = "0+", *, tag: int | None = None) -> S:
    """Declare a nested struct, not null. In its default, every field has its own default."""
    return _declare(element(), WireType.STRUCT, versions, element=element, tag=tag)


def array(
    element: type[S], versions: str = "0+", *, tag: int | None = None, ignorable: bool = False
) -> Sequence[S]:
    """Declare an array of structs, not null; decoded as a tuple."""
    none: Sequence[S] = ()
    return _declare(
        none,
        WireType.STRUCT,
        versions,
        array=True,
        element=element,
        tag=tag,
        ignorable=ignorable,
    )


def nullable_array(
    element: type[S],
    versions: str = "0+",
    *,
    nullable: str | None = None,
    ignorable: bool = False,
) -> Sequence[S] | None:
    """Like `array`, but None stands for null. `nullable` limits the versions that allow null."""
    none: Sequence[S] | None = ()
    return _declare(
        none,
        WireType.STRUCT,
        versions,
        array=True,
        element=element,
        nullable=nullable or versions,
        ignorable=ignorable,
    )


def int8_array(versions: str = "0+", *, ignorable: bool = False) -> Sequence[int]:
    """Declare an array of int8, not null; decoded as a tuple."""
    none: Sequence[int] = ()
    return _declare(none, WireType.INT8, versions, array=True, ignorable=ignorable)


def int32_array(versions: str = "0+", *, ignorable: bool = False) -> Sequence[int]:
    """Declare an array of int32, not null; decoded as a tuple."""
    none: Sequence[int] = ()
    return _declare(none, WireType.INT32, versions, array=True, ignorable=ignorable)


def int64_array(versions: str = "0+", *, ignorable: bool = False) -> Sequence[int]:
    """Declare an array of int64, not null; decoded as a tuple."""
    none: Sequence[int] = ()
    return _declare(none, WireType.INT64, versions, array=True, ignorable=ignorable)


def string_array(versions: str = "0+", *, ignorable: bool = False) -> Sequence[str]:
    """Declare an array of strings; neither the array nor a string is null. Decoded as a tuple."""
    none: Sequence[str] = ()
    return _declare(none, WireType.STRING, versions, array=True, ignorable=ignorable)


def nullable_string_array(versions: str = "0+") -> Sequence[str] | None:
    """Declare a nullable array of strings, which are not null; None = null."""
    none: Sequence[str] | None = ()
    return _declare(none, WireType.STRING, versions, array=True, nullable=versions)
