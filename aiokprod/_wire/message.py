"""`Message`: base class of all request and response bodies, with encoding and decoding."""

from __future__ import annotations

from typing import ClassVar, Self

from aiokprod._wire.decode_plan import decode_plan
from aiokprod._wire.decoders import Decoder
from aiokprod._wire.encode_plan import encode_plan
from aiokprod._wire.encoders import Encoder
from aiokprod._wire.message_schema import Struct, memoised
from aiokprod._wire.primitives import BytesLike
from aiokprod.errors import DecodeError, UnsupportedVersion


class Message(Struct):
    """A request or response body.

    Attributes:
        api_key: number of the API, or -1 for headers.
        min_version: oldest version that this package encodes and decodes.
        max_version: newest version that this package encodes and decodes.
        flexible_version: first version with compact lengths and tagged fields, or None.
        unstable_version: a version that brokers offer only if configured to, or None.
        tolerated_tail: bytes that a known broker wrongly appends to flexible versions, or None.
    """

    __slots__ = ()

    api_key: ClassVar[int] = -1
    min_version: ClassVar[int]
    max_version: ClassVar[int]
    flexible_version: ClassVar[int | None] = None
    unstable_version: ClassVar[int | None] = None
    tolerated_tail: ClassVar[bytes | None] = None

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Return True if `version` has compact lengths and tagged fields. Accepts any version."""
        return cls.flexible_version is not None and version >= cls.flexible_version

    def encode(self, version: int) -> bytes:
        """Return the encoded body in one piece.

        Raises:
            UnsupportedVersion: `version` is not supported, or a field that does not exist in this
                version has a value other than its default and is not ignorable.
            ValueError: a value does not fit its wire type.
        """
        return b"".join(self.encode_chunks(version))

    def encode_chunks(self, version: int) -> list[BytesLike]:
        """Like `encode`, but the chunks of `records` fields are separate items, without a copy."""
        encoder = _encoder(type(self), version)
        try:
            return encoder.encode(self)
        except (AttributeError, TypeError, ValueError) as exc:
            raise ValueError(f"{type(self).__name__} version {version}: {exc}") from exc

    @classmethod
    def decode(cls, data: BytesLike, version: int) -> Self:
        """Decode a message that takes exactly these bytes. `records` fields are views of `data`.

        Raises:
            UnsupportedVersion: `version` is not supported.
            DecodeError: the bytes do not match the schema, or some are left over.
        """
        if not cls.min_version <= version <= cls.max_version:
            raise _not_spoken(cls, version)
        message, end = cls.decode_from(data, version)
        if end != len(data) and not (
            cls.tolerated_tail is not None
            and cls.is_flexible(version)
            and bytes(data[end:]) == cls.tolerated_tail
        ):
            left = len(data) - end
            raise DecodeError(
                f"{cls.__name__} version {version}: {left} bytes left over at byte {end}"
            )
        return message

    @classmethod
    def decode_from(cls, data: BytesLike, version: int) -> tuple[Self, int]:
        """Like `decode`, but `data` may continue after the message. Also return the end index."""
        decoder = _decoder(cls, version)
        try:
            return decoder.decode(data, 0, DecodeError)
        except DecodeError as exc:
            raise DecodeError(f"{cls.__name__} version {version}: {exc.message}") from None


@memoised
def _encoder(cls: type[Message], version: int) -> Encoder:
    if not cls.min_version <= version <= cls.max_version:
        raise _not_spoken(cls, version)
    return encode_plan(cls, version, cls.is_flexible(version))


@memoised
def _decoder(cls: type[Message], version: int) -> Decoder:
    return decode_plan(cls, version, cls.is_flexible(version))


def _not_spoken(cls: type[Message], version: int) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{cls.__name__} version {version} is outside {cls.min_version} to {cls.max_version}"
    )
