"""Invalid responses that a client must survive and reject (F19, F54-F57, F61-F64).

Bytes are changed only in ways that a client can detect; TCP protects against other changes.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from typing import Any

from aiokprod.testing import fake_cluster as faults

_PREFIX = struct.Struct(">i")


def strange_answer(api_key: int, rng: random.Random) -> faults.Reaction:
    """Return a random invalid response to a request of this API."""
    ways = [_garbage, _wrong_correlation, _too_long, _too_short, _twice, _absurd_length]
    if api_key == 0:
        ways += [_partition_left_out, _stranger, _second_entry] * 2
    if api_key == 3:
        ways += [_no_brokers, _no_partitions, _partition_omitted, _no_epochs, _ghost_leader] * 2
    return rng.choice(ways)(rng)


# -- broken bytes ---------------------------------------------------------------------------------


def _garbage(rng: random.Random) -> faults.Reaction:
    return faults.garbage(rng.randbytes(rng.randrange(1, 40)))


def _wrong_correlation(rng: random.Random) -> faults.Reaction:
    step = rng.choice((-1, 1, 5))

    def change(frame: bytes) -> bytes:
        if len(frame) < 8:
            return frame
        number = (_PREFIX.unpack_from(frame, 4)[0] + step) % 2**31
        return frame[:4] + _PREFIX.pack(number) + frame[8:]

    return faults.edit_frame(change)


def _too_long(rng: random.Random) -> faults.Reaction:
    extra = rng.randbytes(rng.randrange(1, 9))

    def change(frame: bytes) -> bytes:
        body = frame[4:] + extra
        return _PREFIX.pack(len(body)) + body

    return faults.edit_frame(change)


def _too_short(rng: random.Random) -> faults.Reaction:
    def change(frame: bytes) -> bytes:
        if len(frame) < 10:
            return frame
        body = frame[4 : rng.randrange(8, len(frame))]
        return _PREFIX.pack(len(body)) + body

    return faults.edit_frame(change)


def _twice(rng: random.Random) -> faults.Reaction:
    return faults.edit_frame(lambda frame: frame + frame)


def _absurd_length(rng: random.Random) -> faults.Reaction:
    length = rng.choice((-1, 0, 3, 2**31 - 1, -(2**31), 352_518_912))
    return faults.edit_frame(lambda frame: _PREFIX.pack(length) + frame[4:])


# -- answers to Produce ---------------------------------------------------------------------------


def _edit_partitions(change: Any) -> faults.Reaction:
    def edit(message: Any) -> Any:
        responses = [
            dataclasses.replace(topic, partition_responses=change(list(topic.partition_responses)))
            for topic in message.responses
        ]
        return dataclasses.replace(message, responses=responses)

    return faults.edit(edit)


def _partition_left_out(rng: random.Random) -> faults.Reaction:
    return _edit_partitions(lambda entries: entries[1:])


def _stranger(rng: random.Random) -> faults.Reaction:
    return _edit_partitions(
        lambda entries: [*entries, dataclasses.replace(entries[0], index=77, base_offset=12)]
    )


def _second_entry(rng: random.Random) -> faults.Reaction:
    return _edit_partitions(
        lambda entries: [
            *entries,
            *(dataclasses.replace(e, base_offset=e.base_offset + 1000) for e in entries),
        ]
    )


# -- answers to Metadata --------------------------------------------------------------------------


def _edit_topics(change: Any) -> faults.Reaction:
    def edit(message: Any) -> Any:
        topics = [
            dataclasses.replace(topic, partitions=change(list(topic.partitions)))
            for topic in message.topics
        ]
        return dataclasses.replace(message, topics=topics)

    return faults.edit(edit)


def _no_brokers(rng: random.Random) -> faults.Reaction:
    return faults.edit(lambda message: dataclasses.replace(message, brokers=[]))


def _no_partitions(rng: random.Random) -> faults.Reaction:
    return _edit_topics(lambda partitions: [])


def _partition_omitted(rng: random.Random) -> faults.Reaction:
    at = rng.randrange(3)
    return _edit_topics(lambda partitions: partitions[:at] + partitions[at + 1 :])


def _no_epochs(rng: random.Random) -> faults.Reaction:
    return _edit_topics(
        lambda partitions: [dataclasses.replace(p, leader_epoch=-1) for p in partitions]
    )


def _ghost_leader(rng: random.Random) -> faults.Reaction:
    return _edit_topics(
        lambda partitions: [dataclasses.replace(p, leader_id=99) for p in partitions]
    )
