"""What the design assumes of real transports, on a socket pair: asyncio's and uvloop's.

The write buffer limit of 0 must make "paused" mean "the last request has not left completely".
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from aiokprod.net.channel import KafkaChannel
from aiokprod.net.connection import Connection
from aiokprod.net.in_flight import Response
from aiokprod.wire.messages.metadata import MetadataResponse
from aiokprod.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.net.fakes import Recorder
from tests.net.wire_helpers import answer, requests_in, versions_answer

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if sys.platform != "win32":
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


class Owner(Recorder):
    """Resolves a future per kind of event awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def connection_ready(self, connection: Any) -> None:
        super().connection_ready(connection)
        self.changed.set()

    def connection_progress(self, connection: Any) -> None:
        super().connection_progress(connection)
        self.changed.set()

    def transport_closed(self, connection: Any) -> None:
        super().transport_closed(connection)
        self.changed.set()


class Pair:
    """A connection over one end of a socket pair; the test plays the broker on the other."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        ours, self.broker = socket.socketpair()
        self.broker.setblocking(False)
        ours.setblocking(False)
        self.sock = ours
        self.owner = Owner()
        self.channel = KafkaChannel(
            peer="broker",
            client_id="me",
            max_in_flight=5,
            receive_max_bytes=1 << 20,
            software_version="1",
        )
        self.connection = Connection(1, self.channel, self.loop, self.owner)

    async def __aenter__(self) -> Pair:
        await self.loop.create_connection(lambda: self.connection, sock=self.sock)
        await self.read_request()
        await self.loop.sock_sendall(self.broker, answer(versions_answer(), 4, 0))
        await self.owner.until(lambda: self.owner.log != [])
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.connection.abort_transport()
        await self.owner.until(lambda: self.connection.gone)
        self.broker.close()

    async def read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await self.loop.sock_recv(self.broker, size - len(data))
        return data

    async def read_request(self) -> Any:
        length = await self.read_exactly(4)
        body = await self.read_exactly(int.from_bytes(length, "big"))
        return requests_in([length, body])[0]

    def can_send(self) -> bool:
        return self.connection.can_send(self.loop.time())

    def send(self, size: int, *, acks: int = -1) -> asyncio.Future[Response]:
        records: Any = [bytes(size)]
        message = ProduceRequest(
            acks=acks,
            timeout_ms=1,
            topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])],
        )
        done: asyncio.Future[Response] = self.loop.create_future()
        now = self.loop.time()
        self.connection.send(
            message, 9, done.set_result, now=now, deadline=now + 60.0, expect_response=acks != 0
        )
        return done


BIG = 8 << 20
"""More than any socket buffer takes at once."""


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    def run_on_loop(main: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
        async def session() -> None:
            async with asyncio.timeout(30.0), Pair() as pair:
                await main(pair)

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(session())

    return run_on_loop


def test_small_request_leaves_at_once_and_the_next_may_follow(run):
    async def main(pair: Pair) -> None:
        first = pair.send(100)
        assert pair.can_send()
        pair.send(100)
        for _ in range(2):
            await pair.read_request()
        await pair.loop.sock_sendall(pair.broker, answer(ProduceResponse(), 9, 1))
        assert (await first).body == ProduceResponse()

    run(main)


def test_big_request_blocks_the_next_until_it_has_left(run):
    async def main(pair: Pair) -> None:
        pair.send(BIG)
        assert not pair.can_send()
        _, message = await pair.read_request()
        assert len(message.topic_data[0].partition_data[0].records) == BIG
        await pair.owner.until(pair.can_send)
        assert len(pair.channel.in_flight) == 1

    run(main)


def test_big_request_without_answer_ends_when_it_has_left(run):
    async def main(pair: Pair) -> None:
        older = pair.send(100)
        done = pair.send(BIG, acks=0)
        await asyncio.sleep(0)
        assert not done.done()
        for _ in range(2):
            await pair.read_request()
        assert (await done).error is None
        assert not older.done()

    run(main)


def test_small_request_without_answer_ends_at_once(run):
    async def main(pair: Pair) -> None:
        done = pair.send(100, acks=0)
        assert not done.done()
        assert (await done).error is None
        assert pair.can_send()

    run(main)


def test_end_of_stream_delivers_what_arrived_before_it(run):
    async def main(pair: Pair) -> None:
        first, second = pair.send(100), pair.send(100)
        await pair.loop.sock_sendall(
            pair.broker, answer(ProduceResponse(), 9, 1) + answer(MetadataResponse(), 9, 2)[:5]
        )
        pair.broker.shutdown(socket.SHUT_WR)
        assert (await first).error is None
        assert (await second).error is not None
        await pair.owner.until(lambda: pair.connection.gone)

    run(main)


def test_broker_that_vanishes_fails_requests(run):
    async def main(pair: Pair) -> None:
        done = pair.send(BIG)
        pair.broker.close()
        assert (await done).error is not None
        await pair.owner.until(lambda: pair.connection.gone)

    run(main)
