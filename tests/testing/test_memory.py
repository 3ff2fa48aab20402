from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokprod.errors import DialError
from aiokprod.testing.memory import Link, MemoryNetwork, memory_pair
from aiokprod.testing.virtual import START_TIME, LeakError, UnhandledError, run


class Recorder(asyncio.Protocol):
    """Records every call with its virtual time."""

    def __init__(self, *, keep_open: bool = False) -> None:
        self.transport: asyncio.Transport
        self.chunks: list[bytes] = []
        self.calls: list[tuple[float, str]] = []
        self.lost: Any = "no"  # replaced by the argument of `connection_lost`
        self.keep_open = keep_open

    def note(self, name: str) -> None:
        self.calls.append((round(asyncio.get_running_loop().time() - START_TIME, 6), name))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.note("made")

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)
        self.note(f"data {len(data)}")

    def eof_received(self) -> bool:
        self.note("eof")
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.lost == "no", "connection_lost came twice"
        self.lost = exc
        self.note("lost")

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")

    @property
    def received(self) -> bytes:
        return b"".join(self.chunks)

    def names(self) -> list[str]:
        return [name for _, name in self.calls]


def joined(latency_s: float = 0.0) -> tuple[Recorder, Recorder, Link]:
    client, server = Recorder(), Recorder()
    return client, server, memory_pair(client, server, latency_s=latency_s)


def test_bytes_arrive_in_order_after_latency() -> None:
    async def main() -> None:
        client, server, link = joined(0.25)
        client.transport.write(b"ab")
        client.transport.writelines([b"cd", bytearray(b"ef"), memoryview(b"gh")])
        await asyncio.sleep(1)
        assert server.received == b"abcdefgh"
        assert server.calls[1] == (0.25, "data 8")
        server.transport.write(b"back")
        await asyncio.sleep(1)
        assert client.received == b"back"
        link.client.close()
        await asyncio.sleep(1)
        assert server.names()[-2:] == ["eof", "lost"]
        assert client.lost is None

    run(main)


def test_bandwidth_spreads_arrival() -> None:
    async def main() -> None:
        client, server, link = joined()
        link.up.bytes_per_s = 10.0
        link.up.chunk = 5
        client.transport.write(b"x" * 20)
        await asyncio.sleep(1.2)
        assert server.received == b"x" * 10
        await asyncio.sleep(1)
        assert len(server.received) == 20
        link.client.abort()
        await asyncio.sleep(1)

    run(main)


def test_chunk_one_delivers_byte_by_byte() -> None:
    async def main() -> None:
        client, server, link = joined()
        link.up.chunk = 1
        client.transport.write(b"hello")
        await asyncio.sleep(1)
        assert server.chunks == [b"h", b"e", b"l", b"l", b"o"]
        link.client.abort()
        await asyncio.sleep(1)

    run(main)


def test_full_window_pauses_and_resumes_writer() -> None:
    async def main() -> None:
        client, server, link = joined(0.1)
        link.up.window = 10
        client.transport.set_write_buffer_limits(high=0)
        client.transport.write(b"1" * 10)
        assert "pause" not in client.names()
        client.transport.write(b"2" * 15)
        assert client.names()[-1] == "pause"
        assert client.transport.get_write_buffer_size() == 15
        await asyncio.sleep(0.15)
        assert client.transport.get_write_buffer_size() == 5
        await asyncio.sleep(1)
        assert client.names()[-1] == "resume"
        assert server.received == b"1" * 10 + b"2" * 15
        link.client.abort()
        await asyncio.sleep(1)

    run(main)


def test_paused_reader_holds_bytes_back() -> None:
    async def main() -> None:
        client, server, link = joined()
        server.transport.pause_reading()
        client.transport.write(b"later")
        await asyncio.sleep(1)
        assert server.received == b""
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert server.received == b"later"
        link.client.abort()
        await asyncio.sleep(1)

    run(main)


@pytest.mark.parametrize("size", range(6))
def test_cut_delivers_exactly_n_bytes_then_resets_both(size: int) -> None:
    async def main() -> None:
        client, server, link = joined(0.01)
        link.up.cut_at = size
        client.transport.write(b"abcde")
        await asyncio.sleep(1)
        assert server.received == b"abcde"[:size]
        assert isinstance(client.lost, ConnectionResetError)
        assert isinstance(server.lost, ConnectionResetError)

    run(main)


def test_cut_counts_over_several_writes() -> None:
    async def main() -> None:
        client, server, link = joined(0.01)
        link.up.cut_at = 4
        for data in (b"ab", b"cd", b"ef"):
            client.transport.write(data)
            await asyncio.sleep(1)
        assert server.received == b"abcd"
        assert isinstance(client.lost, ConnectionResetError)

    run(main)


def test_cut_with_eof_ends_the_stream_for_the_receiver() -> None:
    async def main() -> None:
        client, server, link = joined()
        link.down.cut_at = 2
        link.down.cut_with = "eof"
        server.transport.write(b"abcd")
        await asyncio.sleep(1)
        assert client.received == b"ab"
        assert client.names()[-2:] == ["eof", "lost"]

    run(main)


def test_stall_then_heal_delivers() -> None:
    async def main() -> None:
        client, server, link = joined()
        link.blackhole()
        client.transport.write(b"ab")
        await asyncio.sleep(100)
        assert server.received == b""
        link.heal()
        await asyncio.sleep(1)
        assert server.received == b"ab"
        link.client.abort()
        await asyncio.sleep(1)

    run(main)


def test_abort_still_delivers_what_the_pipe_took() -> None:
    async def main() -> None:
        client, server, link = joined(0.1)
        link.up.window = 4
        client.transport.write(b"abcdef")
        client.transport.abort()
        await asyncio.sleep(1)
        assert server.received == b"abcd"
        assert client.lost is None
        assert server.names()[-2:] == ["eof", "lost"]

    run(main)


def test_close_flushes_backlog_first() -> None:
    async def main() -> None:
        client, server, link = joined(0.1)
        link.up.window = 2
        client.transport.write(b"abcdef")
        client.transport.close()
        client.transport.write(b"ignored")
        await asyncio.sleep(2)
        assert server.received == b"abcdef"
        assert client.lost is None

    run(main)


def test_bytes_to_a_closed_end_come_back_as_reset() -> None:
    async def main() -> None:
        client, server, link = joined(0.1)
        link.up.stall()
        client.transport.close()
        await asyncio.sleep(1)
        server.transport.write(b"nobody reads this")
        await asyncio.sleep(1)
        assert client.received == b""
        assert isinstance(server.lost, ConnectionResetError)

    run(main)


def test_reset_of_one_side_leaves_the_other_until_it_sends() -> None:
    async def main() -> None:
        client, _, link = joined(0.1)
        link.reset("server")
        await asyncio.sleep(10)
        assert client.lost == "no"
        client.transport.write(b"x")
        await asyncio.sleep(1)
        assert isinstance(client.lost, ConnectionResetError)

    run(main)


def test_spoil_and_inject_change_the_stream() -> None:
    async def main() -> None:
        client, server, link = joined()
        link.down.spoil = {1: b"XY"}
        server.transport.write(b"abcd")
        link.down.inject(b"junk")
        await asyncio.sleep(1)
        assert client.received == b"aXYdjunk"
        link.client.abort()
        await asyncio.sleep(1)

    run(main)


def test_buffer_changed_after_write_is_found() -> None:
    async def main() -> None:
        client, _, link = joined(0.1)
        data = bytearray(b"topic-a")
        client.transport.write(data)
        data[-1:] = b"b"
        await asyncio.sleep(1)
        assert len(link.mutated) == 1
        link.client.abort()
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="changed after they were written"):
        run(main)


def test_write_refuses_text() -> None:
    async def main() -> None:
        client, _, link = joined()
        with pytest.raises(TypeError):
            client.transport.write("text")  # type: ignore[arg-type]
        link.client.abort()
        await asyncio.sleep(1)

    run(main)


def test_open_client_transport_is_a_leak() -> None:
    async def main() -> None:
        joined()

    with pytest.raises(LeakError, match="transport"):
        run(main)


def test_network_connects_and_refuses() -> None:
    async def main() -> None:
        network = MemoryNetwork(latency_s=0.5)
        server = Recorder()
        network.listen("host", 9092, lambda link: server)
        transport, protocol = await network.connect(Recorder, "host", 9092)
        assert isinstance(protocol, Recorder)
        assert protocol.calls == [(1.0, "made")]
        assert await network.resolve("host", 9092) == [("host", 9092)]
        with pytest.raises(DialError, match=r"host:1.*refused"):
            await network.connect(Recorder, "host", 1)
        network.unlisten("host", 9092)
        with pytest.raises(DialError):
            await network.connect(Recorder, "host", 9092)
        assert [dial.address[1] for dial in network.dials] == [9092, 1, 9092]
        transport.abort()
        await asyncio.sleep(1)

    run(main)


def test_network_names_resolve_hang_and_fail() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.set_name("kafka", ["10.0.0.1", "10.0.0.2"])
        assert await network.resolve("kafka", 1) == [("10.0.0.1", 1), ("10.0.0.2", 1)]
        with pytest.raises(DialError, match="cannot resolve 'nowhere'"):
            await network.resolve("nowhere", 1)
        network.hang_name("kafka")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(network.resolve("kafka", 1), 5)

    run(main)


def test_network_hanging_connect_never_answers() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.listen("host", 1, lambda link: Recorder())
        network.hang("host", 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(network.connect(Recorder, "host", 1), 1000)

    run(main)


def test_network_cancelled_connect_leaves_nothing() -> None:
    async def main() -> None:
        network = MemoryNetwork(latency_s=1)
        network.listen("host", 1, lambda link: Recorder())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(network.connect(Recorder, "host", 1), 1)
        assert network.links == []

    run(main)


def test_network_trace_is_equal_for_equal_runs() -> None:
    def trace(data: bytes) -> int:
        async def main() -> int:
            network = MemoryNetwork()
            network.listen("host", 1, lambda link: Recorder())
            transport, _ = await network.connect(Recorder, "host", 1)
            transport.write(data)
            await asyncio.sleep(1)
            transport.abort()
            await asyncio.sleep(1)
            return network.trace

        return run(main)

    assert trace(b"a") == trace(b"a")
    assert trace(b"a") != trace(b"b")


class Buffered(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.buffer = bytearray(3)
        self.received = b""
        self.ended = False

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]

    def eof_received(self) -> None:
        self.ended = True


def test_buffered_protocol_gets_bytes_through_its_buffer() -> None:
    async def main() -> None:
        client, server = Recorder(), Buffered()
        memory_pair(client, server)
        client.transport.write(b"abcdefgh")
        client.transport.write_eof()
        await asyncio.sleep(1)
        assert server.received == b"abcdefgh"
        assert server.ended
        with pytest.raises(RuntimeError):
            client.transport.write(b"more")
        client.transport.close()
        await asyncio.sleep(1)

    run(main)


def test_cut_with_eof_loses_what_is_sent_afterwards() -> None:
    async def main() -> None:
        client, server, link = joined()
        server.keep_open = True
        link.up.cut_at = 2
        link.up.cut_with = "eof"
        client.transport.write(b"abcd")
        await asyncio.sleep(1)
        link.up.cut_at = None
        client.transport.write(b"efgh")
        await asyncio.sleep(1)
        assert server.received == b"ab"
        link.reset()
        await asyncio.sleep(1)

    run(main)


def test_network_hanging_connect_goes_on_after_the_heal() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.listen("host", 1, lambda link: Recorder())
        network.blackhole("host", 1)
        connecting = asyncio.ensure_future(network.connect(Recorder, "host", 1))
        await asyncio.sleep(5)
        assert not connecting.done()
        network.heal("host", 1)
        transport, _ = await connecting
        transport.abort()
        await asyncio.sleep(1)

    run(main)
