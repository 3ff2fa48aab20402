"""`Message`: what every request and response body can do."""

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
        api_key: number of the API, -1 for headers.
        min_version: oldest version this package encodes and decodes.
        max_version: newest one.
        flexible_version: first version with compact lengths and tagged fields, or None.
        unstable_version: a newest version that brokers only offer when told to, or None.
        tolerated_tail: bytes that a known broker adds to a flexible version by mistake, or None.
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
        """True if `version` has compact lengths and tagged fields. Any version may be asked."""
        return cls.flexible_version is not None and version >= cls.flexible_version

    def encode(self, version: int) -> bytes:
        """The body in one piece.

        Raises:
            UnsupportedVersion: we do not speak `version`, or a field that is set to something else
                than its default does not exist in it and must not be dropped.
            ValueError: a value does not fit its wire type.
        """
        return b"".join(self.encode_chunks(version))

    def encode_chunks(self, version: int) -> list[BytesLike]:
        """As `encode`, with each chunk of a `records` field as a piece of its own, not copied."""
        encoder = _encoder(type(self), version)
        try:
            return encoder.encode(self)
        except (AttributeError, TypeError, ValueError) as exc:
            raise ValueError(f"{type(self).__name__} version {version}: {exc}") from exc

    @classmethod
    def decode(cls, data: BytesLike, version: int) -> Self:
        """A message from exactly these bytes. `records` fields stay views of `data`.

        Raises:
            UnsupportedVersion: we do not speak `version`.
            DecodeError: bytes are missing, left over or not allowed.
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
        """As `decode`, from the start of a buffer that may hold more; the index after it."""
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
