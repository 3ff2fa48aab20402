"""Faults F61 to F66: broken bytes."""

from __future__ import annotations

import asyncio
import dataclasses
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod._wire.message import Message
from aiokprod._wire.messages.produce import PartitionProduceResponse, ProduceResponse
from aiokprod.errors import Code, KafkaError, Outcome
from aiokprod.producer import Producer
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.transports import Link
from tests.scenarios.scenario_helpers import (
    RECOVERY,
    TICK,
    History,
    error_of,
    noted_sizes,
    now,
    scenario,
)

TP = ("t", 0)


def change(position: int, data: bytes) -> faults.Reaction:
    return faults.edit_frame(lambda frame: frame[:position] + data + frame[position + len(data) :])


def with_length(size: int) -> faults.Reaction:
    return change(0, size.to_bytes(4, "big", signed=True))


@scenario(partitions=1)
@pytest.mark.parametrize("api_key", [0, 3, 18, 22])
async def test_f61_wrong_correlation_id_closes_and_retries(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, api_key: int
) -> None:
    if api_key == 0:
        await history.send()
    links = len(cluster.network.links)
    cluster.control(api_key, change(4, b"\x7f\x00\x00\x01"), times=1)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    assert len(cluster.network.links) > links
    history.all_acked()


@scenario(partitions=1)
async def test_f61_answer_to_a_later_request_is_not_matched_by_position(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The response to the second request arrives first: no record may get the offset of the other
    one."""
    await history.send()
    cluster.control(0, faults.edit_frame(lambda f: f[:7] + bytes([f[7] + 1]) + f[8:]), times=1)
    cluster.control(0, faults.delay(0.02), times=1)
    for _ in range(3):
        await history.submit()
        await asyncio.sleep(0.006)
    await history.settle()
    history.all_acked()


@pytest.mark.matrix
@scenario(partitions=1)
@pytest.mark.parametrize(
    "size", [-1, -(2**31), 0, 1, 3, 2**31 - 1, 16 * 1024 * 1024 + 1, 352_518_912]
)
@pytest.mark.parametrize("api_key", [0, 18])
async def test_f62_impossible_frame_length_closes_at_once(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, size: int, api_key: int
) -> None:
    if api_key == 0:
        await history.send()
    cluster.control(api_key, with_length(size), times=1)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    history.all_acked()


@scenario(partitions=1)
async def test_f62_announced_length_is_not_allocated(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, with_length(15 * 1024 * 1024), times=1)
    tracemalloc.start()
    try:
        task = history.send_later()
        await asyncio.sleep(20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024
    assert not task.done()
    await task
    history.all_acked()


@pytest.mark.matrix
@scenario(partitions=1)
@pytest.mark.parametrize("api_key", [0, 3, 18, 22])
@pytest.mark.parametrize("spoil", ["short", "trailing", "array", "zeros", "ones", "empty"])
async def test_f63_broken_body_closes_and_retries(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, api_key: int, spoil: str
) -> None:
    def broken(frame: bytes) -> bytes:
        body = frame[4:]
        head = 8 if api_key != 18 else 4
        if spoil == "short":
            body = body[:-1]
        elif spoil == "trailing":
            body = body + b"\x00"
        elif spoil == "array":
            body = body[: head - 3] + b"\xff\xff\xff\xff\x0f" + body[head + 2 :]
        elif spoil == "zeros":
            body = body[:5] + bytes(len(body) - 5) + b"\x00" * 3
        elif spoil == "ones":
            body = body[:5] + b"\xff" * (len(body) - 5)
        else:
            body = body[:4]
        return len(body).to_bytes(4, "big") + body

    if api_key == 0:
        await history.send()
    cluster.control(api_key, faults.edit_frame(broken), times=1)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    history.all_acked()


def flipped(position: int, mask: int) -> Callable[[bytes], bytes]:
    """Flip bits of one byte, unless the result is a throttle time of any length."""

    def change(frame: bytes) -> bytes:
        spoiled = frame[:position] + bytes([frame[position] ^ mask]) + frame[position + 1 :]
        try:
            throttle_ms = ProduceResponse.decode(spoiled[9:], 13).throttle_time_ms
        except KafkaError:
            return spoiled
        return spoiled if throttle_ms < 60_000 else frame

    return change


@scenario(partitions=1, limit_s=100_000)
async def test_f63_every_single_byte_spoiled_in_a_produce_answer_is_survived(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """A flipped byte may give a different valid response; it must never crash, hang or
    duplicate."""
    await history.send()
    sizes: list[int] = []
    cluster.control(0, noted_sizes(sizes), times=1)
    await history.send()
    for position in range(sizes[0]):
        for mask in (0x01, 0x80, 0xFF):
            cluster.control(0, faults.edit_frame(flipped(position, mask)), times=1)
            attempt = await history.send(timeout=150)
            assert attempt.settled_at - attempt.started_at <= 120 + TICK
    stored = cluster.values("t", 0)
    assert len(set(stored)) == len(stored)
    await history.send()
    assert history.attempts[-1].acked


def edit_parts(function: Callable[[list[Any]], list[Any]]) -> faults.Reaction:
    def edited(message: Any) -> Message:
        topics = [
            dataclasses.replace(t, partition_responses=function(list(t.partition_responses)))
            for t in message.responses
        ]
        changed: Message = dataclasses.replace(message, responses=topics)
        return changed

    return faults.edit(edited)


@scenario(partitions=1)
async def test_f64_partition_left_out_is_retried_as_unknown(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, edit_parts(lambda parts: []), times=1)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    history.all_acked()
    assert cluster.duplicates == 1


@scenario(partitions=1)
async def test_f64_topic_left_out_is_retried_as_unknown(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    left_out = faults.edit(lambda message: dataclasses.replace(message, responses=[]))
    cluster.control(0, left_out, times=1)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    history.all_acked()


@scenario(partitions=1)
async def test_f64_second_answer_for_a_partition_is_ignored(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()

    def twice(parts: list[Any]) -> list[Any]:
        other = dataclasses.replace(parts[0], error_code=Code.INVALID_TIMESTAMP, base_offset=-1)
        return [parts[0], other]

    cluster.control(0, edit_parts(twice), times=1)
    attempt = await history.send()
    assert attempt.acked
    history.all_acked()


@scenario(partitions=2)
async def test_f64_answer_for_a_partition_not_asked_for_is_ignored(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(2, partitions=(0, 1))
    await history.settle()
    stranger = PartitionProduceResponse(index=1, error_code=87, base_offset=-1)
    cluster.control(0, edit_parts(lambda parts: [stranger, *parts]), times=1, broker_id=1)
    cluster.control(0, faults.delay(0.1), times=1, broker_id=2)
    await history.submit_many(2, partitions=(1, 0))
    await history.settle()
    history.all_acked()


@scenario(partitions=1, max_block_ms=8_000)
@pytest.mark.parametrize(
    "greeting",
    [
        b"\x15\x03\x03\x00\x02\x02\x50",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
    ],
)
async def test_f65_stranger_on_the_port_is_named_and_not_stormed(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, greeting: bytes
) -> None:
    def stranger(request: faults.Request) -> faults.Reaction:
        return faults.Reaction(process=False, raw=greeting, close=True)

    cluster.control(None, stranger)
    attempt = await history.send()
    error = error_of(attempt)
    assert error.outcome is Outcome.NOT_SENT
    assert attempt.settled_at - attempt.started_at <= 10 + TICK
    text = chain(error)
    if greeting[:1] in b"\x15\x16" and greeting:
        assert "TLS" in text
    elif greeting.startswith(b"HTTP"):
        assert "HTTP" in text
    assert "broker" in text
    assert len(cluster.network.dials) < 8 * 3 * 5


def chain(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    return " / ".join(texts)


@scenario(partitions=1, request_timeout_ms=3_000)
async def test_f66_trickling_peer_meets_the_request_timeout(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    (link,) = cluster.network.links_to("broker1", 9092)
    link.down.chunk = 1
    link.down.bytes_per_s = 1.0
    start = now()
    attempt = await history.send()
    assert 3.0 - TICK <= now() - start < 3.0 + RECOVERY
    assert attempt.acked
    history.all_acked()


@scenario(partitions=3)
@pytest.mark.parametrize("chunk", [1, 3])
async def test_bytes_that_arrive_one_by_one_are_put_together(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, chunk: int
) -> None:
    def slice_up(link: Link) -> None:
        link.up.chunk = link.down.chunk = chunk

    cluster.network.on_link = slice_up
    await history.submit_many(30, partitions=(0, 1, 2))
    await history.settle()
    history.all_acked()


@scenario(partitions=1)
async def test_unasked_bytes_between_answers_close_the_connection(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    (link,) = cluster.network.links_to("broker1", 9092)
    link.down.inject(b"\x00\x00\x00\x08\x00\x00\x00\x63\x00\x00\x00\x00")
    await asyncio.sleep(0.5)
    assert not link.is_open
    await history.send()
    history.all_acked()


@scenario(partitions=1, max_block_ms=10_000)
async def test_garbage_from_every_broker_ends_in_time(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.control(None, faults.garbage(bytes(range(256)) * 4))
    attempt = await history.send()
    error_of(attempt, KafkaError)
    assert attempt.settled_at - attempt.started_at <= 10 + TICK
