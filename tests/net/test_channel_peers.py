"""Responses of brokers other than Apache Kafka that the channel must understand, as golden
bytes."""

from __future__ import annotations

import struct

from aiokprod._net.channel import KafkaChannel
from aiokprod._net.channel_states import State
from tests.current import current
from tests.net.wire_helpers import answer, requests_in, versions_answer

# To an unsupported version of ApiVersions, librdkafka's mock brokers respond with the error and a
# list that has a compact length but classic fields. This is neither version 0 nor the requested
# version.
MOCK_REFUSAL = bytes.fromhex("00230100120000000200000000")


def new_channel() -> KafkaChannel:
    channel = KafkaChannel(
        peer="broker h:1 (id 1)",
        client_id="me",
        max_in_flight=5,
        receive_max_bytes=4 << 20,
        software_version="1.2.3",
    )
    channel.transport_up(1.0, 11.0)
    channel.data_to_send()
    return channel


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def test_versions_mock_broker_refusal_falls_back_to_version_zero() -> None:
    channel = new_channel()
    channel.receive_data(frame(0, MOCK_REFUSAL), 1.0)
    assert channel.state is State.CHECKING_API_VERSIONS
    (header, _) = requests_in(channel.data_to_send())[0]
    assert header.request_api_version == 0
    channel.receive_data(answer(versions_answer(), 0, 1), 1.0)
    assert current(channel.state) is State.READY
