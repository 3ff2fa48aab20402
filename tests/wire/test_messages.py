"""Every message in every version: encoding, decoding, and properties of the classes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._wire import messages
from aiokprod._wire.message import Message
from aiokprod._wire.messages import REQUESTS, RESPONSES
from aiokprod._wire.messages.api_versions import ApiVersionsResponse
from aiokprod._wire.messages.find_coordinator import FindCoordinatorRequest
from aiokprod._wire.messages.init_producer_id import InitProducerIdRequest
from aiokprod._wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokprod._wire.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from aiokprod.errors import DecodeError, UnsupportedVersion
from tests.wire.strategies import MESSAGES, VERSIONED, filled, project, structs, versioned_id


@pytest.mark.parametrize("message", MESSAGES, ids=versioned_id)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_message_round_trips_in_every_version(message: type[Message], data: st.DataObject) -> None:
    value = data.draw(structs(message))
    for version in range(message.min_version, message.max_version + 1):
        expected = project(value, version)
        encoded = expected.encode(version)
        assert message.decode(encoded, version) == expected
        assert message.decode(memoryview(bytearray(encoded)), version) == expected
        assert b"".join(expected.encode_chunks(version)) == encoded


@pytest.mark.parametrize(("message", "version"), VERSIONED, ids=versioned_id)
def test_message_with_all_fields_set_round_trips(message: type[Message], version: int) -> None:
    value = filled(message, version)
    assert message.decode(value.encode(version), version) == value


@pytest.mark.parametrize(("message", "version"), VERSIONED, ids=versioned_id)
def test_message_of_defaults_round_trips(message: type[Message], version: int) -> None:
    assert message.decode(message().encode(version), version) == message()


@pytest.mark.parametrize("message", MESSAGES, ids=versioned_id)
def test_message_is_frozen_hashable_copyable_and_picklable_after_decoding(
    message: type[Message],
) -> None:
    value = filled(message, message.max_version)
    decoded = message.decode(value.encode(message.max_version), message.max_version)
    field = dataclasses.fields(decoded)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(decoded, field, getattr(decoded, field))
    assert type(decoded) is message
    assert dataclasses.replace(decoded) == value
    if message.api_key not in (0, 1):  # memoryviews of records cannot be hashed, copied or pickled
        assert hash(decoded) == hash(value)
        assert copy.deepcopy(decoded) == value
        assert pickle.loads(pickle.dumps(decoded)) == value


@pytest.mark.parametrize("message", MESSAGES, ids=versioned_id)
@pytest.mark.parametrize("step", [-1, 1])
def test_message_outside_its_versions_is_refused(message: type[Message], step: int) -> None:
    version = message.min_version - 1 if step < 0 else message.max_version + 1
    with pytest.raises(UnsupportedVersion, match=message.__name__):
        message().encode(version)
    with pytest.raises(UnsupportedVersion, match=message.__name__):
        message.decode(b"", version)


def test_registries_import_what_is_asked_for_and_hold_every_module() -> None:
    modules = {path.stem for path in Path(messages.__file__).parent.glob("[a-z]*.py")}
    assert {api.module for api in messages.APIS.values()} == modules
    assert len(REQUESTS) == len(RESPONSES) == len(modules)
    assert 0 in REQUESTS
    assert 4711 not in REQUESTS
    assert RESPONSES.get(4711) is None
    program = (
        "import sys, aiokprod\n"
        "print('aiokprod._wire.messages.fetch' in sys.modules)\n"
        "from aiokprod._wire.messages import REQUESTS\n"
        "print(REQUESTS[1].__name__)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "FetchRequest"]


def test_registries_hold_requests_and_responses_of_the_same_apis() -> None:
    assert list(REQUESTS) == list(RESPONSES)
    for api_key, request in REQUESTS.items():
        response = RESPONSES[api_key]
        assert request.api_key == response.api_key == api_key
        assert (request.min_version, request.max_version, request.flexible_version) == (
            response.min_version,
            response.max_version,
            response.flexible_version,
        )
        assert request.__name__.removesuffix("Request") == response.__name__.removesuffix(
            "Response"
        )


def test_encode_refuses_a_field_the_version_lacks() -> None:
    request = FindCoordinatorRequest(key="transaction", key_type=1)
    assert request.encode(1)
    with pytest.raises(UnsupportedVersion, match=r"FindCoordinatorRequest\.key_type .* version 0"):
        request.encode(0)


def test_encode_refuses_a_nested_field_the_version_lacks() -> None:
    partition = PartitionProduceResponse(0, current_leader=LeaderIdAndEpoch(3, 7))
    response = ProduceResponse((TopicProduceResponse("t", partition_responses=(partition,)),))
    assert ProduceResponse.decode(response.encode(10), 10) == response
    with pytest.raises(UnsupportedVersion, match="current_leader"):
        response.encode(9)


def test_encode_accepts_an_empty_list_for_a_field_the_version_lacks() -> None:
    assert FindCoordinatorRequest("k", coordinator_keys=[]).encode(3)
    with pytest.raises(UnsupportedVersion, match="coordinator_keys"):
        FindCoordinatorRequest("k", coordinator_keys=["k"]).encode(3)


def test_encode_drops_an_ignorable_field_the_version_lacks() -> None:
    response = MetadataResponse(
        throttle_time_ms=5,
        brokers=(MetadataResponseBroker(1, "h", 9092, "rack"),),
        cluster_id="c",
        controller_id=1,
    )
    decoded = MetadataResponse.decode(response.encode(0), 0)
    assert decoded == MetadataResponse(brokers=(MetadataResponseBroker(1, "h", 9092),))


def test_encode_refuses_null_where_the_version_has_none() -> None:
    assert MetadataRequest(topics=None).encode(1)
    with pytest.raises(UnsupportedVersion, match="topics must not be None in version 0"):
        MetadataRequest(topics=None).encode(0)
    by_id = MetadataRequest(topics=(MetadataRequestTopic(bytes(16), None),))
    assert by_id.encode(10)
    with pytest.raises(UnsupportedVersion, match="name must not be None in version 9"):
        by_id.encode(9)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(ProduceRequest(acks=1 << 15), id="int16 too large"),
        pytest.param(ProduceRequest(timeout_ms=-(1 << 31) - 1), id="int32 too small"),
        pytest.param(ProduceRequest(acks="all"), id="str for int"),  # type: ignore[arg-type]
        pytest.param(ProduceRequest(transactional_id=b"x"), id="bytes for str"),  # type: ignore[arg-type]
        pytest.param(ProduceRequest(transactional_id="x" * 0x8000), id="string too long"),
        pytest.param(ProduceRequest(transactional_id="\ud800"), id="lone surrogate"),
        pytest.param(ProduceRequest(topic_data=(1,)), id="int for struct"),  # type: ignore[arg-type]
        pytest.param(ProduceRequest(topic_data=5), id="int for array"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("version", [8, 13])
def test_encode_names_the_message_when_a_value_does_not_fit(
    request_: ProduceRequest, version: int
) -> None:
    with pytest.raises(ValueError, match=f"ProduceRequest version {version}"):
        request_.encode(version)


def test_encode_takes_the_longest_string() -> None:
    for version in (8, 12):
        request = ProduceRequest(transactional_id="x" * 0x7FFF)
        assert ProduceRequest.decode(request.encode(version), version) == request


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_records_are_written_as_given_and_never_copied(version: int) -> None:
    header, payload, other = b"h" * 61, bytearray(b"p" * 500), memoryview(b"o" * 300)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5,
        topic_data=(
            TopicProduceData(
                partition_data=(
                    PartitionProduceData(0, (header, payload)),
                    PartitionProduceData(1, other),
                    PartitionProduceData(2, b""),
                    PartitionProduceData(3, None),
                ),
            ),
        ),
    )
    chunks = request.encode_chunks(version)
    assert any(chunk is header for chunk in chunks)
    assert any(chunk is payload for chunk in chunks)
    assert any(chunk is other for chunk in chunks)

    data = b"".join(chunks)
    partitions = ProduceRequest.decode(data, version).topic_data[0].partition_data
    assert [partition.records for partition in partitions] == [
        header + payload,
        other,
        b"",
        None,
    ]
    decoded = partitions[0].records
    assert isinstance(decoded, memoryview)
    assert decoded.obj is data


def test_encode_refuses_a_uuid_of_another_length() -> None:
    for uuid in (b"short", bytes(17)):
        request = ProduceRequest(topic_data=(TopicProduceData(topic_id=uuid),))
        with pytest.raises(ValueError, match="ProduceRequest version 13: UUID of"):
            request.encode(13)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 127, 128, 5000])
@pytest.mark.parametrize("version", [8, 12])
def test_arrays_of_any_length_round_trip(count: int, version: int) -> None:
    partition = MetadataResponsePartition(replica_nodes=tuple(range(count)))
    topic = MetadataResponseTopic(name="t", partitions=(partition,) * min(count, 200))
    response = MetadataResponse(topics=(topic,))
    assert MetadataResponse.decode(response.encode(version), version) == response


def test_topic_names_of_any_script_survive() -> None:
    request = MetadataRequest(topics=(MetadataRequestTopic(name="тема-🦊"),))
    for version in (8, 9):
        assert MetadataRequest.decode(request.encode(version), version) == request


def test_decode_names_message_and_version_in_its_error() -> None:
    with pytest.raises(DecodeError, match="ApiVersionsResponse version 0: 2 bytes expected"):
        ApiVersionsResponse.decode(b"\0", 0)
    with pytest.raises(DecodeError, match="InitProducerIdRequest version 2: 1 bytes left over"):
        InitProducerIdRequest.decode(InitProducerIdRequest().encode(2) + b"\0", 2)
