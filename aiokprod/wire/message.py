"""`Message`: what every request and response body can do."""

from __future__ import annotations

from typing import ClassVar, Self, cast

from aiokprod.errors import DecodeError, UnsupportedVersion
from aiokprod.wire.decoding import decode_plan
from aiokprod.wire.encoding import encode_plan
from aiokprod.wire.primitives import BytesLike, Reader, Writer, layout_error
from aiokprod.wire.schema import Struct


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
        self._check_version(version)
        writer = Writer()
        try:
            encode_plan(type(self), version, self.is_flexible(version))(writer, self)
        except (layout_error, AttributeError, TypeError, ValueError) as exc:
            raise ValueError(f"{type(self).__name__} version {version}: {exc}") from exc
        return writer.chunks()

    @classmethod
    def decode(cls, data: BytesLike, version: int) -> Self:
        """A message from exactly these bytes. `records` fields stay views of `data`.

        Raises:
            UnsupportedVersion: we do not speak `version`.
            DecodeError: bytes are missing, left over or not allowed.
        """
        cls._check_version(version)
        reader = Reader(data)
        message = cls.decode_from(reader, version)
        if (
            cls.tolerated_tail is not None
            and cls.is_flexible(version)
            and bytes(data[reader.pos :]) == cls.tolerated_tail
        ):
            return message
        try:
            reader.expect_end()
        except DecodeError as exc:
            raise DecodeError(f"{cls.__name__} version {version}: {exc.message}") from None
        return message

    @classmethod
    def decode_from(cls, reader: Reader, version: int) -> Self:
        """As `decode`, from a reader that may hold more bytes."""
        try:
            message = decode_plan(cls, version, cls.is_flexible(version)).decode(reader)
        except DecodeError as exc:
            raise DecodeError(f"{cls.__name__} version {version}: {exc.message}") from None
        return cast(Self, message)  # the plan of cls makes instances of cls

    @classmethod
    def _check_version(cls, version: int) -> None:
        if not cls.min_version <= version <= cls.max_version:
            raise UnsupportedVersion(
                f"{cls.__name__} version {version} is outside "
                f"{cls.min_version} to {cls.max_version}"
            )
