"""Decoders with mutated bytes: they raise only `DecodeError`, are fast, and use memory in
proportion to the bytes.

The decoders are compiled, so a defect in them may also crash the process.
"""

from __future__ import annotations

import contextlib
import random
import time
import tracemalloc
from dataclasses import dataclass, field

from aiokprod._wire.frames import FrameReader
from aiokprod._wire.headers import decode_response_header
from aiokprod.errors import DecodeError, FrameTooLarge, UnsupportedVersion
from tests.fuzz.mutations import Sample, corpus, mutate

SLOW_S = 1.0
SPARE_BYTES = 32 * 1024
"""Bytes for the objects of a message with a tiny frame, and for the inspection of an error by
tests/secret_leak_check.py."""
OBJECT_TIMES = 10
"""Maximum bytes of Python objects per byte of a frame with many small elements. Undamaged responses
take 9.6 bytes (`test_undamaged_answers_take_at_most_ten_times_their_bytes`)."""

MEASURE_EVERY = 4_096
ROUND_TRIP_EVERY = 16
FRAME_LIMIT = 1 << 20


@dataclass
class Figures:
    """The result of a run.

    Attributes:
        most_memory: maximum bytes that a measured decode held beyond twice its frame.
        slowest_s: processor time of the slowest `MEASURE_EVERY` executions.
        seconds: processor time of all executions.
    """

    executions: int = 0
    decoded: int = 0
    refused: int = 0
    measured: int = 0
    most_memory: int = 0
    slowest_s: float = 0.0
    seconds: float = 0.0
    per_target: dict[str, int] = field(default_factory=dict)

    def add(self, other: Figures) -> None:
        """Add the figures of another run."""
        self.executions += other.executions
        self.decoded += other.decoded
        self.refused += other.refused
        self.measured += other.measured
        self.most_memory = max(self.most_memory, other.most_memory)
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.seconds += other.seconds
        for name, count in other.per_target.items():
            self.per_target[name] = self.per_target.get(name, 0) + count


class Finding(AssertionError):
    """Bytes that a decoder did not treat correctly; the text contains them."""


def fuzz_decoders(executions: int, seed: int) -> Figures:
    """Decode mutated responses, including the header, until `executions` are reached."""
    rng = random.Random(seed)
    samples = corpus(seed)
    figures = Figures()
    started = time.process_time()
    pick = rng.random
    count = len(samples)
    before = time.process_time()
    for number in range(executions):
        sample = samples[int(pick() * count)]
        data = mutate(sample.data, samples[int(pick() * count)].data, rng)
        try:
            message = sample.message.decode(data, sample.version)
        except DecodeError:
            figures.refused += 1
        except Exception as error:
            raise _finding(sample, data, f"raised {error!r}") from error
        else:
            figures.decoded += 1
            if not figures.decoded % ROUND_TRIP_EVERY:
                _check_round_trip(sample, data, message)
        if not number % MEASURE_EVERY:
            figures.measured += 1
            figures.most_memory = max(figures.most_memory, measured(sample, data, OBJECT_TIMES))
            spent = time.process_time() - before
            if spent > SLOW_S + 1.0:
                raise _finding(sample, data, f"{MEASURE_EVERY} decodes took {spent} s")
            figures.slowest_s = max(figures.slowest_s, spent)
            before = time.process_time()
    figures.executions = executions
    figures.per_target["decoders"] = executions
    figures.seconds = time.process_time() - started
    return figures


def _check_round_trip(sample: Sample, data: bytes, message: object) -> None:
    """Check that a decoded message can be encoded again and keeps its meaning."""
    again = message.encode(sample.version)  # type: ignore[attr-defined]
    if sample.message.decode(again, sample.version) != message:
        raise _finding(sample, data, "means something else when it is encoded again")


def measured(sample: Sample, data: bytes, times: int = 2) -> int:
    """Decode with tracemalloc; return the peak of held bytes beyond twice the frame.

    Raises:
        Finding: the peak exceeds twice the frame plus `SPARE_BYTES`, and `times` the frame.
    """
    allowed = max(2 * len(data) + SPARE_BYTES, times * len(data))
    peak = _peak(sample, data)
    if peak > allowed:  # a table of the interpreter may have grown at that moment
        peak = _peak(sample, data)
    if peak > allowed:
        raise _finding(sample, data, f"took {peak} bytes of memory for {len(data)}")
    return max(0, peak - 2 * len(data))


def _peak(sample: Sample, data: bytes) -> int:
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        with contextlib.suppress(DecodeError):
            sample.message.decode(data, sample.version)
        return tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()


def _finding(sample: Sample, data: bytes, text: str) -> Finding:
    return Finding(f"{sample.message.__name__} version {sample.version}: {data.hex()} {text}")


def fuzz_frames(executions: int, seed: int) -> Figures:
    """Feed damaged streams in random chunks to the frame reader and the response header decoder."""
    rng = random.Random(seed)
    samples = corpus(seed, random_each=1)
    figures = Figures(per_target={"frames": executions})
    started = time.process_time()
    for _ in range(executions):
        sample = rng.choice(samples)
        frames = [rng.randbytes(4) + rng.choice(samples).data for _ in range(rng.randrange(1, 4))]
        stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        damaged = rng.random() < 0.7
        if damaged:
            stream = mutate(stream, sample.data, rng)
        found = _fed(stream, rng)
        if not damaged and found != frames:
            raise Finding(f"{stream.hex()}: frames came out as {found}")
        figures.decoded += found is not None
        figures.refused += found is None
        for frame in found or ():
            try:
                decode_response_header(frame, sample.message.api_key, sample.version)
            except (DecodeError, UnsupportedVersion):
                figures.refused += 1
    figures.executions = executions
    figures.seconds = time.process_time() - started
    return figures


def _fed(stream: bytes, rng: random.Random) -> list[bytes] | None:
    """Return the frames of a stream fed in random pieces, or None if it was refused."""
    reader = FrameReader(FRAME_LIMIT)
    found: list[bytes] = []
    at = 0
    while at < len(stream):
        size = rng.choice((1, 2, 3, 5, 40, 1 << 16))
        piece = stream[at : at + size]
        try:
            found += map(bytes, reader.feed(rng.choice((bytes, bytearray, memoryview))(piece)))
        except (DecodeError, FrameTooLarge):
            return None
        except Exception as error:
            raise Finding(f"{stream.hex()}: {error!r}") from error
        at += size
        if reader.pending > at:
            raise Finding(f"{stream.hex()}: {reader.pending} bytes held of {at}")
    return found


def hostile_counts(sample: Sample) -> int:
    """Insert counts that exceed the available bytes at every position of a sample; return the
    number of decodes.

    Raises:
        Finding: memory was allocated for items that the bytes do not contain.
    """
    tried = 0
    for at in range(len(sample.data) + 1):
        for count in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f\xff", b"\xff\x7f"):
            measured(sample, sample.data[:at] + count + sample.data[at:])
            tried += 1
    return tried
