"""The codecs of record batches, compatible with Java clients and brokers.

Codecs are thread-safe and release the GIL on large inputs. Decompression stops at the caller's size
limit. Source: Java `org.apache.kafka.common.compress`, KIP-390 (levels).
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from struct import pack
from typing import Any, ClassVar, Final

from aiokprod._config.fields import LEVELS
from aiokprod._wire.primitives import BytesLike, Reader
from aiokprod.errors import ConfigError, DecodeError

_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_ZSTD_SLICE: Final = 512
"""Input bytes per call of zstandard, which cannot limit its output. 512 bytes of input contain at
most 170 blocks of 128 KiB, so one call exceeds the limit by at most 22 MiB."""


class Codec(ABC):
    """A compression type at one level. Creating an object imports the codec's library.

    Several worker threads may call a codec at the same time, so it must not keep state between
    calls.

    Attributes:
        name: value of `compression_type`.
        codec_id: number of the codec in the batch attributes.
        level: the compression level; None = the default of Java's client.
    """

    name: ClassVar[str]
    codec_id: ClassVar[int]

    def __init__(self, level: int | None = None) -> None:
        self.level = level

    @abstractmethod
    def compress(self, data: BytesLike) -> bytes:
        """Compress the encoded records of a batch."""

    @abstractmethod
    def decompress(self, data: BytesLike, max_bytes: int) -> bytes:
        """Decompress the records of a batch.

        Raises:
            DecodeError: `data` is damaged, or its content exceeds `max_bytes`.
        """


class NoCompression(Codec):
    """No compression."""

    name = "none"
    codec_id = 0

    def compress(self, data: BytesLike) -> bytes:
        """Return a copy of `data`, or `data` itself if it is bytes."""
        return bytes(data)

    def decompress(self, data: BytesLike, max_bytes: int) -> bytes:
        """Return a copy of `data`, or `data` itself if it is bytes."""
        if len(data) > max_bytes:
            raise _too_large(self.name, max_bytes)
        return bytes(data)


class Gzip(Codec):
    """gzip (RFC 1952); the default level is zlib's."""

    name = "gzip"
    codec_id = 1

    def compress(self, data: BytesLike) -> bytes:
        """Return one gzip member."""
        level = zlib.Z_DEFAULT_COMPRESSION if self.level is None else self.level
        stream = zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        return stream.compress(data) + stream.flush()

    def decompress(self, data: BytesLike, max_bytes: int) -> bytes:
        """Decompress any number of gzip members."""
        return _drain(
            self.name,
            lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
            zlib.error,
            bytes(data),
            max_bytes,
        )


class Snappy(Codec):
    """Snappy blocks in the framing of xerial's Java library. Plain blocks can also be read."""

    name = "snappy"
    codec_id = 2

    def __init__(self, level: int | None = None) -> None:
        super().__init__(level)
        try:
            from cramjam import DecompressionError, snappy
        except ImportError as exc:
            raise ConfigError(
                "compression type 'snappy' needs the package cramjam: "
                "pip install 'aiokprod[snappy]'"
            ) from exc
        self._snappy: Any = snappy
        self._error: type[Exception] = DecompressionError

    def compress(self, data: BytesLike) -> bytes:
        """Return the xerial header and length-prefixed blocks of up to 32 KiB of input."""
        chunks = [_XERIAL_HEADER]
        view = memoryview(data)
        for start in range(0, len(view), _XERIAL_BLOCK):
            block = bytes(self._snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK])))
            chunks += (len(block).to_bytes(4, "big"), block)
        return b"".join(chunks)

    def decompress(self, data: BytesLike, max_bytes: int) -> bytes:
        """Decompress framed blocks, or one plain block as written by librdkafka."""
        view = memoryview(data)
        if view[:8] != _XERIAL_HEADER[:8]:
            return self._block(bytes(view), max_bytes, max_bytes)
        reader = Reader(view)
        reader.advance(len(_XERIAL_HEADER))
        blocks: list[bytes] = []
        room = max_bytes
        while reader.remaining:
            blocks.append(self._block(reader.blob(reader.int32()), room, max_bytes))
            room -= len(blocks[-1])
        return b"".join(blocks)

    def _block(self, block: bytes, room: int, max_bytes: int) -> bytes:
        if Reader(block).uvarint() > room:  # every block begins with its uncompressed size
            raise _too_large(self.name, max_bytes)
        try:
            return bytes(self._snappy.decompress_raw(block))
        except self._error as exc:
            raise DecodeError(f"snappy: {exc}") from exc


class Lz4(Codec):
    """LZ4 frames that Java can read: independent blocks of 64 KiB, no dictionary, no content
    checksum (Java computes a different one). The default level is the fast compressor.

    Uses the package lz4 or, where lz4 has no wheel (musl, free-threaded Python), cramjam.
    """

    name = "lz4"
    codec_id = 3

    _FAST: ClassVar[int] = 0
    _JAVA_DEFAULT: ClassVar[int] = 9  # for this level, Java's client uses the fast compressor

    def __init__(self, level: int | None = None) -> None:
        super().__init__(level)
        self._library: _Lz4Package | _CramjamLz4
        try:
            self._library = _Lz4Package()
        except ImportError:
            try:
                self._library = _CramjamLz4()
            except ImportError as exc:
                raise ConfigError(
                    "compression type 'lz4' needs the package lz4 or cramjam: pip install lz4"
                ) from exc

    def compress(self, data: BytesLike) -> bytes:
        """Return one LZ4 frame."""
        level = self._FAST if self.level in (None, self._JAVA_DEFAULT) else self.level
        return self._library.compress(data, level)

    def decompress(self, data: BytesLike, max_bytes: int) -> bytes:
        """Decompress any number of LZ4 frames."""
        return self._library.decompress(bytes(data), max_bytes)


class _Lz4Package:
    """LZ4 frames with the package lz4."""

    def __init__(self) -> None:
        import lz4.frame

        self._frames: Any = lz4.frame

    def compress(self, data: BytesLike, level: int | None) -> bytes:
        frame: bytes = self._frames.compress(
            data,
            compression_level=level,
            block_size=self._frames.BLOCKSIZE_MAX64KB,
            block_linked=False,
            content_checksum=False,
            block_checksum=False,
            store_size=False,
        )
        return frame

    def decompress(self, data: bytes, max_bytes: int) -> bytes:
        return _drain(Lz4.name, self._frames.LZ4FrameDecompressor, RuntimeError, data, max_bytes)


class _CramjamLz4:
    """LZ4 frames with the package cramjam. Their blocks have checksums, which Java verifies."""

    def __init__(self) -> None:
        from cramjam import DecompressionError, lz4

        self._lz4: Any = lz4
        self._error: type[Exception] = DecompressionError

    def compress(self, data: BytesLike, level: int | None) -> bytes:
        # Use a stream, because cramjam's one-shot call writes dependent blocks, which brokers
        # reject (KIP-57).
        stream = self._lz4.Compressor(level=level, block_linked=False, content_checksum=False)
        stream.compress(bytes(data))
        return bytes(stream.finish())

    def decompress(self, data: bytes, max_bytes: int) -> bytes:
        if not data:
            return b""
        # Request one byte more than allowed, to distinguish "at the limit" from "above it".
        room = bytearray(max_bytes + 1)
        try:
            size = self._lz4.decompress_into(data, room)
        except (self._error, OSError) as exc:
            if "write whole buffer" in str(exc):
                raise _too_large(Lz4.name, max_bytes) from exc
            raise DecodeError(f"lz4: {exc}") from exc
        if size > max_bytes:
            raise _too_large(Lz4.name, max_bytes)
        return bytes(memoryview(room)[:size])


class Zstd(Codec):
    """Zstandard frames; the default level is 3.

    Uses the standard library from Python 3.14 on (PEP 784), otherwise the package zstandard.
    """

    name = "zstd"
    codec_id = 4

    _DEFAULT: ClassVar[int] = 3

    def __init__(self, level: int | None = None) -> None:
        super().__init__(level)
        self._library: _StandardZstd | _ZstandardPackage
        try:
            self._library = _StandardZstd()
        except ImportError:  # before 3.14, or a Python that was built without libzstd
            try:
                self._library = _ZstandardPackage()
            except ImportError as exc:
                raise ConfigError(
                    "compression type 'zstd' needs the package zstandard: pip install zstandard"
                ) from exc

    def compress(self, data: BytesLike) -> bytes:
        """Return one Zstandard frame."""
        level = self._DEFAULT if self.level is None else self.level
        return self._library.compress(data, level)

    def decompress(self, data: BytesLike, max_bytes: int) -> bytes:
        """Decompress any number of Zstandard frames."""
        return self._library.decompress(bytes(data), max_bytes)


_MAX_WINDOW_LOG: Final = 27
"""Binary logarithm of the largest window size, which level 22 uses."""


class _StandardZstd:
    """Zstandard frames with the standard library."""

    def __init__(self) -> None:
        # Imported by name, because the module has no types and some supported Pythons lack it.
        self._zstd: Any = import_module("compression.zstd")

    def compress(self, data: BytesLike, level: int) -> bytes:
        frame: bytes = self._zstd.compress(data, level)
        return frame

    def decompress(self, data: bytes, max_bytes: int) -> bytes:
        options = {self._zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
        return _drain(
            Zstd.name,
            lambda: self._zstd.ZstdDecompressor(options=options),
            self._zstd.ZstdError,
            data,
            max_bytes,
        )


class _ZstandardPackage:
    """Zstandard frames with the package zstandard."""

    def __init__(self) -> None:
        import zstandard

        self._zstd = zstandard

    def compress(self, data: BytesLike, level: int) -> bytes:
        return self._zstd.ZstdCompressor(level=level).compress(data)

    def decompress(self, data: bytes, max_bytes: int) -> bytes:
        context = self._zstd.ZstdDecompressor(max_window_size=1 << _MAX_WINDOW_LOG)
        chunks: list[bytes] = []
        room = max_bytes
        rest = data
        while rest:
            stream = context.decompressobj()
            position = 0
            while not stream.eof:
                if position >= len(rest):
                    raise DecodeError("zstd: the last frame is incomplete")
                try:
                    chunk = stream.decompress(rest[position : position + _ZSTD_SLICE])
                except self._zstd.ZstdError as exc:
                    raise DecodeError(f"zstd: {exc}") from exc
                position += _ZSTD_SLICE
                room -= len(chunk)
                if room < 0:
                    raise _too_large(Zstd.name, max_bytes)
                chunks.append(chunk)
            rest = stream.unused_data + rest[position:]
        return b"".join(chunks)


def _drain(
    name: str,
    new_stream: Callable[[], Any],
    error: type[Exception],
    data: bytes,
    max_bytes: int,
) -> bytes:
    """Decompress all frames in `data` with stream decoders that limit their output."""
    chunks: list[bytes] = []
    room = max_bytes
    while data:
        stream = new_stream()
        try:
            # Request one byte more than allowed, to distinguish "at the limit" from "above it".
            chunk = stream.decompress(data, room + 1)
        except error as exc:
            raise DecodeError(f"{name}: {exc}") from exc
        room -= len(chunk)
        if room < 0:
            raise _too_large(name, max_bytes)
        if not stream.eof:
            raise DecodeError(f"{name}: the last frame is incomplete")
        chunks.append(chunk)
        data = stream.unused_data or b""
    return b"".join(chunks)


def _too_large(name: str, max_bytes: int) -> DecodeError:
    return DecodeError(f"{name}: the content exceeds the limit of {max_bytes} bytes")


_CODECS: Final[tuple[type[Codec], ...]] = (NoCompression, Gzip, Snappy, Lz4, Zstd)
CODEC_NAMES: Final = tuple(codec.name for codec in _CODECS)
"""The values of `compression_type`."""


def codec_for(name: str, level: int | None = None) -> Codec:
    """Return the codec for a `compression_type`.

    Args:
        name: one of `CODEC_NAMES`.
        level: a level in the range of `LEVELS`; None = Java's default (for gzip, also -1). Codecs
            without levels ignore it.

    Raises:
        ConfigError: the name is unknown, the level is out of range, or a package is missing.
    """
    codec = _codec_named(name)
    if codec is Gzip and level == zlib.Z_DEFAULT_COMPRESSION:
        level = None
    levels = LEVELS.get(name)
    if level is None or levels is None:
        return codec()
    low, high = levels.low, levels.high
    if not low <= level <= high:
        raise ConfigError(f"{name} compression level {level} is not in the range {low} to {high}")
    return codec(level)


def _codec_named(name: str) -> type[Codec]:
    for codec in _CODECS:
        if codec.name == name:
            return codec
    known = ", ".join(codec.name for codec in _CODECS)
    raise ConfigError(f"compression type {name!r} is unknown: use one of {known}")


def codec_by_id(codec_id: int) -> Codec:
    """Return the codec for the id in the batch attributes.

    Raises:
        DecodeError: there is no such codec.
        ConfigError: a package is missing.
    """
    for codec in _CODECS:
        if codec.codec_id == codec_id:
            return codec()
    raise DecodeError(f"compression codec {codec_id} is unknown")
