from __future__ import annotations

import builtins
import gzip
import os
import sys
import tracemalloc
import zlib
from collections.abc import Mapping, Sequence
from types import ModuleType

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._wire import compression
from aiokprod._wire.compression import (
    CODEC_NAMES,
    Gzip,
    Lz4,
    Snappy,
    Zstd,
    codec_by_id,
    codec_for,
)
from aiokprod.errors import ConfigError, DecodeError

NAMES = ["none", "gzip", "snappy", "lz4", "zstd"]
COMPRESSED = NAMES[1:]
LIMIT = 1 << 24


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=2000) | st.binary(max_size=8).map(lambda part: part * 10_000))
@settings(max_examples=40, deadline=None)
def test_codec_round_trips(name: str, data: bytes) -> None:
    codec = codec_for(name)
    compressed = codec.compress(data)
    assert type(compressed) is bytes
    assert codec.decompress(compressed, LIMIT) == data
    assert codec_by_id(codec.codec_id).decompress(memoryview(compressed), len(data)) == data


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_codec_takes_any_buffer(name: str, kind: type) -> None:
    data = os.urandom(1000) + bytes(100_000)
    codec = codec_for(name)
    assert codec.decompress(kind(codec.compress(kind(data))), LIMIT) == data


@pytest.mark.parametrize(("name", "codec_id"), [(name, id_) for id_, name in enumerate(NAMES)])
def test_codec_has_kafkas_name_and_id(name: str, codec_id: int) -> None:
    assert codec_for(name).codec_id == codec_id
    assert codec_by_id(codec_id).name == name


def test_codecs_are_those_of_kafka() -> None:
    assert list(CODEC_NAMES) == NAMES


@pytest.mark.parametrize("codec_id", [-1, 5, 7])
def test_unknown_codec_id_is_refused(codec_id: int) -> None:
    with pytest.raises(DecodeError, match=f"codec {codec_id} "):
        codec_by_id(codec_id)


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'brotli' is unknown: use one of none, gzip, snappy"):
        codec_for("brotli")


@pytest.mark.parametrize(
    ("name", "level"),
    [("gzip", 1), ("gzip", 9), ("gzip", -1), ("lz4", 1), ("lz4", 17), ("zstd", -5), ("zstd", 22)],
)
def test_level_in_range_is_used(name: str, level: int) -> None:
    data = b"some text, some text, other text " * 300
    codec = codec_for(name, level)
    assert codec.decompress(codec.compress(data), LIMIT) == data


@pytest.mark.parametrize(
    ("name", "level", "allowed"),
    [
        ("gzip", 0, "1 to 9"),
        ("gzip", 10, "1 to 9"),
        ("lz4", 0, "1 to 17"),
        ("lz4", 18, "1 to 17"),
        ("zstd", 23, "-131072 to 22"),
        ("zstd", -131073, "-131072 to 22"),
    ],
)
def test_level_out_of_range_is_refused(name: str, level: int, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} compression level {level} .* {allowed}"):
        codec_for(name, level)


@pytest.mark.parametrize("name", ["none", "snappy"])
def test_codec_without_levels_ignores_them(name: str) -> None:
    assert codec_for(name, 5).level is None


def test_higher_level_compresses_better() -> None:
    data = "".join(f"{number * 7919 % 10007},{number};" for number in range(20_000)).encode()
    assert len(Gzip(9).compress(data)) < len(Gzip(1).compress(data))
    assert len(Lz4(12).compress(data)) < len(Lz4().compress(data))
    assert len(Zstd(19).compress(data)) < len(Zstd().compress(data))


def test_lz4_level_9_means_the_fast_compressor_as_in_java() -> None:
    data = b"some text, some text, other text " * 300
    assert Lz4(9).compress(data) == Lz4().compress(data) != Lz4(10).compress(data)


@pytest.mark.parametrize("size", [0, 1, 100, 65_536, 65_537, 1_000_000])
@pytest.mark.parametrize("level", [None, 1, 12])
def test_lz4_frame_has_what_java_demands(size: int, level: int | None) -> None:
    """Java `Lz4BlockOutputStream.FLG` and `BD`: version 1, independent blocks, no checksums, no
    content size, blocks of 64 KiB.
    """
    frame = Lz4(level).compress((b"0123456789" * (size // 10 + 1))[:size])
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] == 0b01_1_0_0_0_00
    assert frame[5] == 4 << 4
    assert frame[-4:] == bytes(4)  # end mark without a checksum after it
    position = 7
    while int.from_bytes(frame[position : position + 4], "little"):
        length = int.from_bytes(frame[position : position + 4], "little") & 0x7FFFFFFF
        assert length <= 65_536
        position += 4 + length
    assert position == len(frame) - 4


def test_lz4_frames_of_other_writers_are_read() -> None:
    data = os.urandom(300_000) + bytes(300_000)
    frame = lz4.frame.compress(data, block_linked=True, content_checksum=True, store_size=True)
    assert Lz4().decompress(frame, LIMIT) == data
    assert Lz4().decompress(frame + frame, LIMIT) == data + data


def test_snappy_has_the_framing_of_xerial() -> None:
    data = bytes(range(256)) * 300
    framed = Snappy().compress(data)
    assert framed[:16] == bytes.fromhex("82534e4150505900 00000001 00000001")
    position, blocks = 16, []
    while position < len(framed):
        length = int.from_bytes(framed[position : position + 4], "big")
        blocks.append(bytes(cramjam.snappy.decompress_raw(framed[position + 4 :][:length])))
        position += 4 + length
    assert [len(block) for block in blocks] == [32_768, 32_768, 11_264]
    assert b"".join(blocks) == data


def test_snappy_without_framing_is_read() -> None:
    data = b"librdkafka writes one plain block " * 100
    assert Snappy().decompress(bytes(cramjam.snappy.compress_raw(data)), LIMIT) == data


def test_snappy_without_cramjam_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_cramjam(
        name: str,
        globals_: Mapping[str, object] | None = None,
        locals_: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if name == "cramjam":
            raise ModuleNotFoundError(name)
        return real_import(name, globals_, locals_, fromlist or (), level)

    monkeypatch.delitem(sys.modules, "cramjam", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_cramjam)
    with pytest.raises(ConfigError, match=r"pip install 'aiokprod\[snappy\]'"):
        codec_for("snappy")
    assert codec_for("lz4").compress(b"others do not need it")


def test_gzip_of_other_writers_is_read() -> None:
    data = b"abc" * 1000
    member = gzip.compress(data)
    assert Gzip().decompress(member, LIMIT) == data
    assert Gzip().decompress(member + member, LIMIT) == data + data
    assert gzip.decompress(Gzip().compress(data)) == data


def test_zstd_of_other_writers_is_read() -> None:
    data = os.urandom(100) * 5000
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
    stream = compressor.compressobj()
    frame = stream.compress(data) + stream.flush()
    assert Zstd().decompress(frame, LIMIT) == data
    assert Zstd().decompress(frame + frame, LIMIT) == data + data
    assert zstandard.ZstdDecompressor().decompress(Zstd().compress(data)) == data


@pytest.mark.parametrize("name", NAMES)
def test_limit_is_exact(name: str) -> None:
    data = b"0123456789" * 1000
    codec = codec_for(name)
    compressed = codec.compress(data)
    assert codec.decompress(compressed, 10_000) == data
    for limit in (0, 1, 9_999):
        with pytest.raises(DecodeError, match=f"{name}: .* limit of {limit} bytes"):
            codec.decompress(compressed, limit)


@pytest.mark.parametrize("name", COMPRESSED)
def test_bomb_is_stopped_before_it_unfolds(name: str) -> None:
    codec = codec_for(name)
    bomb = codec.compress(bytes(100_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="limit"):
            codec.decompress(bomb, 1_000_000)
        # The input is copied once. zstd may exceed the limit by one slice of blocks.
        assert tracemalloc.get_traced_memory()[1] < len(bomb) + 40_000_000
    finally:
        tracemalloc.stop()


def test_zstd_window_is_bounded() -> None:
    # The window descriptor 0xf8 in the frame header requests 2 TiB.
    frame = bytes.fromhex("28b52ffd 00 f8") + bytes(10)
    with pytest.raises(DecodeError, match="zstd"):
        Zstd().decompress(frame, LIMIT)


@pytest.mark.parametrize("name", COMPRESSED)
def test_truncated_data_are_refused(name: str) -> None:
    data = os.urandom(500) + bytes(5000)
    codec = codec_for(name)
    compressed = codec.compress(data)
    for size in range(1, len(compressed)):
        if name == "snappy" and size == 16:  # a header without blocks is complete
            continue
        with pytest.raises(DecodeError):
            codec.decompress(compressed[:size], LIMIT)


@pytest.mark.parametrize("name", COMPRESSED)
@given(data=st.binary(min_size=1, max_size=100))
def test_random_bytes_raise_only_decode_error(name: str, data: bytes) -> None:
    codec = codec_for(name)
    for damaged in (data, codec.compress(b"abcabcabc")[:12] + data):
        try:
            assert len(codec.decompress(damaged, 10_000)) <= 10_000
        except DecodeError:
            continue


def test_damaged_gzip_checksum_is_detected() -> None:
    compressed = bytearray(Gzip().compress(b"abc"))
    compressed[-5] ^= 1
    with pytest.raises(DecodeError, match="gzip"):
        Gzip().decompress(bytes(compressed), LIMIT)


def test_gzip_default_level_is_that_of_zlib() -> None:
    data = b"some text, some text, other text " * 300
    stream = zlib.compressobj(-1, zlib.DEFLATED, 31)
    assert Gzip().compress(data) == stream.compress(data) + stream.flush()


@pytest.fixture(params=["lz4 of cramjam", "zstd of the standard library"])
def other_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select the library that this Python would not select, and return the name of its codec."""
    if "lz4" in request.param:
        monkeypatch.setitem(sys.modules, "lz4.frame", None)
        return "lz4"
    if sys.version_info < (3, 14):
        # This package provides PEP 784 for earlier versions.
        backport = pytest.importorskip("backports.zstd")
        monkeypatch.setitem(sys.modules, "compression.zstd", backport)
        monkeypatch.setitem(sys.modules, "compression", backport)
    return "zstd"


def library_of(name: str) -> str:
    codec = codec_for(name)
    assert isinstance(codec, Lz4 | Zstd)
    return type(codec._library).__name__


def test_the_other_library_is_selected(other_library: str) -> None:
    expected = {"lz4": "_CramjamLz4", "zstd": "_StandardZstd"}
    assert library_of(other_library) == expected[other_library]


@pytest.mark.parametrize("data", [b"", b"a", os.urandom(70_000), bytes(300_000)])
def test_two_libraries_read_each_other(
    other_library: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = codec_for(other_library)
    monkeypatch.undo()
    usual = compression._Lz4Package() if other_library == "lz4" else compression._ZstandardPackage()
    frame = other.compress(memoryview(data))
    assert usual.decompress(frame, LIMIT) == data
    assert other.decompress(usual.compress(data, 3), LIMIT) == data
    assert other.decompress(frame + frame, 2 * len(data)) == data + data
    if data:
        with pytest.raises(DecodeError, match=f"limit of {len(data) - 1} bytes"):
            other.decompress(frame, len(data) - 1)
        for size in {1, 5, len(frame) // 2, len(frame) - 1}:
            with pytest.raises(DecodeError, match=other_library):
                other.decompress(frame[:size], LIMIT)


def test_levels_reach_the_other_library(other_library: str) -> None:
    data = b"".join(b"%d," % (number * number) for number in range(20_000))
    for level in (1, 12):
        codec = codec_for(other_library, level)
        assert codec.decompress(codec.compress(data), LIMIT) == data
    low, high = (codec_for(other_library, level).compress(data) for level in (1, 12))
    assert low != high


@pytest.mark.parametrize("level", [None, 1, 9, 12, 17])
def test_cramjams_lz4_frames_have_what_java_demands(
    level: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `test_lz4_frame_has_what_java_demands`, but checksums of blocks are allowed."""
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    frame = Lz4(level).compress(b"0123456789" * 20_000)
    assert frame[4] & ~0x10 == 0x60
    assert frame[5] == 0x40


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lz4.frame", "cramjam", "compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match="'lz4' needs the package lz4 or cramjam: pip install lz4"
    ):
        codec_for("lz4")
    with pytest.raises(ConfigError, match="'zstd' needs the package zstandard: pip install"):
        codec_for("zstd")
