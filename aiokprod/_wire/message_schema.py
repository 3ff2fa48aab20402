"""How messages are declared: dataclass fields that carry their wire type and versions.

    @dataclass(frozen=True, slots=True)
    class PartitionProduceData(Struct):
        index: int = int32()
        records: Records | None = records()

A declaration reads like the row of Kafka's message schema it stands for: wire type, versions in
which the field exists, versions in which it may be null, default, tag. Versions are written as
there: ``"3+"``, ``"0-12"``, ``"4"``. A field without a stated default has Java's: 0, False, "",
zero UUID, no elements. `decoding` and `encoding` compile the
declarations into plans.

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
"""Record batches: one buffer, or the chunks that make it up. Decoded values are memoryviews."""

ZERO_UUID: Final = bytes(16)
"""The id of "no topic"; a UUID is its 16 bytes, most significant first."""

_HIGHEST: Final = 0x7FFF
_METADATA_KEY: Final = "wire"


class Struct:
    """Base of everything that is declared with the functions below."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


S = TypeVar("S", bound=Struct)


class WireType(Enum):
    """Type of a field, or of the elements of an array field; the value is Kafka's name."""

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
"""`struct` codes of the integers."""


class VersionRange(NamedTuple):
    """Versions `low` to `high`, both included; empty if `low` > `high`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """From Kafka's notation: "3+", "0-12", "4" or "none"."""
        if text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), _HIGHEST)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def covers(self, version: int) -> bool:
        """True if `version` is in the range."""
        return self.low <= version <= self.high


NEVER: Final = VersionRange(0, -1)


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """One row of a message schema.

    Attributes:
        wire_type: of the value, or of the elements if `array`.
        array: the field is a sequence.
        element: class of the value or of the elements if `wire_type` is STRUCT.
        versions: where the field exists.
        nullable: where it may be null.
        tag: number of the tagged field, or None if the field is always written.
        ignorable: a value other than the default is dropped silently where the field does not
            exist; otherwise encoding it there raises `UnsupportedVersion`.
        compact: lengths follow the message's flexible versions; False only in the request header.
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
        """Bytes of the length before the value; 0 = compact."""
        if flexible and self.compact:
            return 0
        return 2 if self.wire_type is WireType.STRING and not self.array else 4

    def element_width(self, flexible: bool) -> int:
        """Bytes of the length before each string of an array; 0 = compact."""
        return 0 if flexible and self.compact else 2


_P = ParamSpec("_P")
_T = TypeVar("_T")


def memoised(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """`functools.cache`, whose stub forgets the parameters and refuses classes as arguments."""
    return cast(Callable[_P, _T], cache(function))


@memoised
def fields_of(cls: type[Struct]) -> tuple[FieldSpec, ...]:
    """The declarations of a struct in wire order."""
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
    """-2⁷ to 2⁷-1."""
    return _declare(default, WireType.INT8, versions, tag=tag, ignorable=ignorable)


def int16(
    versions: str = "0+", *, default: int = 0, tag: int | None = None, ignorable: bool = False
) -> int:
    """-2¹⁵ to 2¹⁵-1."""
    return _declare(default, WireType.INT16, versions, tag=tag, ignorable=ignorable)


def int32(
    versions: str = "0+", *, default: int = 0, tag: int | None = None, ignorable: bool = False
) -> int:
    """-2³¹ to 2³¹-1."""
    return _declare(default, WireType.INT32, versions, tag=tag, ignorable=ignorable)


def int64(
    versions: str = "0+", *, default: int = 0, tag: int | None = None, ignorable: bool = False
) -> int:
    """-2⁶³ to 2⁶³-1."""
    return _declare(default, WireType.INT64, versions, tag=tag, ignorable=ignorable)


def boolean(
    versions: str = "0+", *, default: bool = False, tag: int | None = None, ignorable: bool = False
) -> bool:
    """One byte; any other than 0 is True."""
    return _declare(default, WireType.BOOL, versions, tag=tag, ignorable=ignorable)


def uuid(versions: str = "0+", *, tag: int | None = None, ignorable: bool = False) -> bytes:
    """16 bytes; all zero = none."""
    return _declare(ZERO_UUID, WireType.UUID, versions, tag=tag, ignorable=ignorable)


def string(versions: str = "0+", *, default: str = "", ignorable: bool = False) -> str:
    """UTF-8, up to 32767 bytes, not null."""
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
    """UTF-8, up to 32767 bytes; None = null, in all its versions unless `nullable` says which."""
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
    """Bytes up to 2³¹-1, not null; decoded as a copy."""
    return _declare(b"", WireType.BYTES, versions)


def records(versions: str = "0+") -> Records | None:
    """Record batches; None = null. Neither encoding nor decoding copies them."""
    return _declare(None, WireType.RECORDS, versions, nullable=versions)


def struct(element: type[S], versions: str = "0+", *, tag: int | None = None) -> S:
    """One nested struct, not null; the default is the struct of defaults."""
    return _declare(element(), WireType.STRUCT, versions, element=element, tag=tag)


def array(
    element: type[S], versions: str = "0+", *, tag: int | None = None, ignorable: bool = False
) -> Sequence[S]:
    """Any number of structs, not null; decoded as a tuple."""
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
    """As `array`; None = null, in all its versions unless `nullable` says which."""
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
    """Any number of int8, not null; decoded as a tuple."""
    none: Sequence[int] = ()
    return _declare(none, WireType.INT8, versions, array=True, ignorable=ignorable)


def int32_array(versions: str = "0+", *, ignorable: bool = False) -> Sequence[int]:
    """Any number of int32, not null; decoded as a tuple."""
    none: Sequence[int] = ()
    return _declare(none, WireType.INT32, versions, array=True, ignorable=ignorable)


def int64_array(versions: str = "0+", *, ignorable: bool = False) -> Sequence[int]:
    """Any number of int64, not null; decoded as a tuple."""
    none: Sequence[int] = ()
    return _declare(none, WireType.INT64, versions, array=True, ignorable=ignorable)


def string_array(versions: str = "0+", *, ignorable: bool = False) -> Sequence[str]:
    """Any number of strings, neither it nor they null; decoded as a tuple."""
    none: Sequence[str] = ()
    return _declare(none, WireType.STRING, versions, array=True, ignorable=ignorable)


def nullable_string_array(versions: str = "0+") -> Sequence[str] | None:
    """Any number of strings, which are not null; None = null."""
    none: Sequence[str] | None = ()
    return _declare(none, WireType.STRING, versions, array=True, nullable=versions)
