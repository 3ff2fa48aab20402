"""A broker in this process that accepts all records and does almost no work, so that only the
producer is measured."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable
from typing import Any, Final

from aiokprod._wire.headers import decode_request_header, encode_response
from aiokprod._wire.message import Message
from aiokprod._wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from aiokprod._wire.messages.init_producer_id import InitProducerIdResponse
from aiokprod._wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokprod._wire.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from aiokprod.environment import Environment

TOPIC: Final = "t"
_ID: Final = bytes(15) + b"\x01"
_PRODUCE: Final = 0
_VERSIONS: Final = {_PRODUCE: (3, 13), 3: (0, 13), 18: (0, 4), 22: (0, 4)}
_START: Final = struct.Struct(">ihhi")  # length, API key, version, correlation id
_CORRELATION: Final = slice(4, 8)


class NearbyBroker:
    """A cluster of one broker with one topic of one partition. It is also the producer's `Dialer`.

    Attributes:
        requests: number of served Produce requests.
    """

    def __init__(self) -> None:
        self.requests = 0

    def environment(self) -> Environment:
        """Return the environment for `Producer(environment=...)`."""
        return Environment(dialer=self)

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        """Return the host itself as its only address. See `Dialer`."""
        return [(host, port)]

    async def connect(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect a protocol to this broker. See `Dialer`."""
        protocol = protocol_factory()
        transport = _Transport(self, protocol, asyncio.get_running_loop())
        protocol.connection_made(transport)
        return transport, protocol


class _Transport(asyncio.Transport):
    """Responds to a request in the next iteration of the event loop.

    A request must be a single call of `writelines` whose first chunk contains the request header.
    All Produce responses are equal except for the correlation id.
    """

    def __init__(
        self, broker: NearbyBroker, protocol: asyncio.Protocol, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__()
        self._broker = broker
        self._protocol = protocol
        self._loop = loop
        self._produced = bytearray()

    def writelines(self, list_of_data: Any) -> None:
        start = list_of_data[0]
        size, api_key, version, _ = _START.unpack_from(start)
        if 4 + size != sum(map(len, list_of_data)):
            raise AssertionError("one request for each call, please")
        if api_key == _PRODUCE and self._produced:
            self._broker.requests += 1
            self._produced[_CORRELATION] = start[8:12]
            answer = bytes(self._produced)
        else:
            header, _ = decode_request_header(memoryview(b"".join(list_of_data))[4:])
            answer = b"".join(encode_response(_answer(api_key), version, header.correlation_id))
            if api_key == _PRODUCE:
                self._broker.requests += 1
                self._produced[:] = answer
        self._loop.call_soon(self._protocol.data_received, answer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing, because there is no buffer."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close


def _answer(api_key: int) -> Message:
    if api_key == _PRODUCE:
        partition = PartitionProduceResponse(index=0, base_offset=0)
        topic = TopicProduceResponse(name=TOPIC, topic_id=_ID, partition_responses=[partition])
        return ProduceResponse(responses=[topic])
    if api_key == 3:
        led = MetadataResponsePartition(
            partition_index=0, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
        )
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="nearby", port=9092)],
            cluster_id="nearby",
            controller_id=1,
            topics=[MetadataResponseTopic(name=TOPIC, topic_id=_ID, partitions=[led])],
        )
    if api_key == 22:
        return InitProducerIdResponse(producer_id=1, producer_epoch=0)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in _VERSIONS.items()
        ]
    )
