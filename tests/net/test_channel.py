from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._net import channel as channel_module
from aiokprod._net.authentication import Authenticated, AuthenticationStep, SendToBroker
from aiokprod._net.channel import HANDSHAKE_MAX_BYTES, KafkaChannel
from aiokprod._net.channel_states import (
    TRANSITIONS,
    Closed,
    CloseReason,
    Completed,
    Event,
    Ready,
    State,
)
from aiokprod._net.in_flight import InFlightRequest, Response
from aiokprod._wire.message import Message
from aiokprod._wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataResponse
from aiokprod._wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from aiokprod._wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from aiokprod.errors import (
    AuthenticationError,
    CorrelationMismatch,
    DecodeError,
    Disconnected,
    FrameTooLarge,
    KafkaError,
    NotReady,
    Outcome,
    ProducerClosed,
    ProtocolError,
    RequestTimedOut,
    UnsupportedVersion,
)
from tests.current import current
from tests.net.wire_helpers import ALL_VERSIONS, answer, requests_in, versions_answer

METADATA = MetadataRequest(topics=None)
VERSION = 12


def ignore(response: Response) -> None: ...


def taken(channel: KafkaChannel) -> list[Any]:
    """Return the events since the last call, in order."""
    events = list(channel.events)
    channel.events.clear()
    return events


def new_channel(**kwargs: Any) -> KafkaChannel:
    settings: dict[str, Any] = {
        "peer": "broker h:1 (id 1)",
        "client_id": "me",
        "max_in_flight": 5,
        "receive_max_bytes": 4 << 20,
        "software_version": "1.2.3",
    }
    return KafkaChannel(**(settings | kwargs))


def ready_channel(ranges: dict[int, tuple[int, int]] | None = None, **kwargs: Any) -> KafkaChannel:
    """Return a channel in state READY. Its next correlation id is 1."""
    channel = new_channel(**kwargs)
    channel.transport_up(1.0, 11.0)
    channel.data_to_send()
    channel.receive_data(answer(versions_answer(ranges), 4, 0), 1.0)
    assert channel.state is State.READY
    taken(channel)
    return channel


def send(
    channel: KafkaChannel, *, version: int = VERSION, message: Message = METADATA, **kwargs: Any
) -> InFlightRequest:
    options: dict[str, Any] = {"now": 2.0, "deadline": 32.0} | kwargs
    return channel.send(message, version, ignore, **options)


def send_and_write(channel: KafkaChannel, count: int = 1) -> list[InFlightRequest]:
    requests = [send(channel) for _ in range(count)]
    channel.data_to_send()
    return requests


def closed(channel: KafkaChannel) -> Closed:
    assert channel.state is State.CLOSED
    last = taken(channel)[-1]
    assert isinstance(last, Closed)
    return last


def metadata_answer(correlation_id: int, version: int = VERSION) -> bytes:
    return answer(MetadataResponse(cluster_id=f"c{correlation_id}"), version, correlation_id)


# -- the transition table -------------------------------------------------------------------------


DESIGN = {
    ("CONNECTING", "TRANSPORT_UP", "CHECKING_API_VERSIONS"),
    ("CHECKING_API_VERSIONS", "VERSION_REFUSED", "CHECKING_API_VERSIONS"),
    ("CHECKING_API_VERSIONS", "VERSIONS_KNOWN", "READY"),
    ("CHECKING_API_VERSIONS", "VERSIONS_KNOWN_AUTH", "AUTHENTICATING"),
    ("AUTHENTICATING", "AUTHENTICATED", "READY"),
    ("READY", "REAUTHENTICATE", "AUTHENTICATING"),
    ("READY", "CLOSE", "CLOSING"),
    ("CLOSING", "DRAINED", "CLOSED"),
    *((state.name, "LOST", "CLOSED") for state in State if state is not State.CLOSED),
}


def test_transitions_are_those_of_the_design() -> None:
    assert {(s.name, e.name, to.name) for (s, e), to in TRANSITIONS.items()} == DESIGN


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_transition_not_in_the_table_raises_and_keeps_the_state(state: State, event: Event) -> None:
    channel = new_channel()
    channel.state = state
    if (state, event) in TRANSITIONS:
        channel._advance(event)
        assert channel.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(KeyError):
            channel._advance(event)
        assert channel.state is state


def test_transport_up_twice_raises() -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    with pytest.raises(KeyError):
        channel.transport_up(1.0, 11.0)


# -- version discovery ----------------------------------------------------------------------------


def test_first_request_is_api_versions_in_highest_version_with_software_name() -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    [(header, message)] = requests_in(channel.data_to_send())
    assert (header.request_api_key, header.request_api_version) == (18, 4)
    assert header.client_id == "me"
    assert message == ApiVersionsRequest("aiokprod", "1.2.3")
    assert channel.state is State.CHECKING_API_VERSIONS
    assert channel.preparing
    assert channel.in_flight.earliest_deadline() == 11.0


def test_nothing_can_be_sent_before_ready() -> None:
    channel = new_channel()
    assert not channel.can_send
    with pytest.raises(NotReady):
        send(channel)
    channel.transport_up(1.0, 11.0)
    channel.data_to_send()
    with pytest.raises(NotReady):
        send(channel)
    assert channel.data_to_send() == []


def test_versions_answer_makes_ready_and_intersects_ranges() -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    ranges = {0: (3, 99), 3: (0, 5), 18: (0, 4), 1000: (0, 1), 19: (90, 99), 37: (3, 2)}
    channel.receive_data(answer(versions_answer(ranges), 4, 0), 1.0)
    assert channel.state is State.READY
    assert taken(channel) == [Ready(0)]
    assert dict(channel.versions) == {0: (3, ALL_VERSIONS[0][1]), 3: (0, 5), 18: (0, 4)}
    assert channel.can_send
    assert not channel.preparing


@pytest.mark.parametrize("asked", [0, 1, 2, 3, 4])
def test_versions_answer_is_decoded_in_the_version_asked_for(asked: int) -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    if asked < 4:
        refusal = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(18, 0, asked)])
        channel.receive_data(answer(refusal, 0, 0), 1.0)
    requests = requests_in(channel.data_to_send())
    assert requests[-1][0].request_api_version == asked
    channel.receive_data(answer(versions_answer(), asked, len(requests) - 1), 1.0)
    assert channel.state is State.READY


def test_version_refused_without_a_hint_asks_with_version_0() -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    channel.data_to_send()
    channel.receive_data(answer(ApiVersionsResponse(error_code=35), 0, 0), 1.0)
    [(header, _)] = requests_in(channel.data_to_send())
    assert (header.request_api_version, header.correlation_id) == (0, 1)
    assert channel.state is State.CHECKING_API_VERSIONS
    assert taken(channel) == []


@pytest.mark.parametrize(
    "hints", [[99, 99, 99], [4, 4, 4], [3, 2, 1], [2, 2, 2], [0], [-1, -5], [3, 9, 4]]
)
def test_f59_version_refused_for_ever_ends_after_three_questions(hints: list[int]) -> None:
    """A hostile broker offers the version that it has just rejected."""
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    asked = []
    for correlation_id, hint in enumerate([*hints, 0, 0]):
        asked += [header.request_api_version for header, _ in requests_in(channel.data_to_send())]
        refusal = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(18, 0, hint)])
        channel.receive_data(answer(refusal, 0, correlation_id), 1.0)
    assert asked == sorted(set(asked), reverse=True)
    assert (asked[0], asked[-1]) == (4, 0)
    assert len(asked) <= 3
    event = closed(channel)
    assert event.reason is CloseReason.PROTOCOL
    assert isinstance(event.error, UnsupportedVersion)


def test_errors_of_broken_bytes_name_the_peer_once() -> None:
    channel = ready_channel()
    channel.receive_data(b"\xff\xff\xff\xff", 1.0)
    error = closed(channel).error
    assert error is not None
    assert error.message.startswith("broker h:1 (id 1): frame length -1")
    channel = ready_channel()
    channel.receive_data(metadata_answer(9), 1.0)
    error = closed(channel).error
    assert error is not None
    assert error.message.count("broker h:1") == 1


def test_version_refused_in_the_requests_own_format_is_understood() -> None:
    """Kafka answers UNSUPPORTED_VERSION in version 0. Responses of brokers that use another version
    are understood too."""
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    channel.data_to_send()
    refusal = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(18, 0, 2)])
    channel.receive_data(answer(refusal, 4, 0), 1.0)
    [(header, _)] = requests_in(channel.data_to_send())
    assert header.request_api_version == 2


def test_version_refused_in_no_known_format_asks_with_version_0() -> None:
    """librdkafka's mock brokers put the error code of version 0 before the list of another
    version."""
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    channel.data_to_send()
    frame = (0).to_bytes(4, "big") + (35).to_bytes(2, "big") + b"\x02\x00\x12\x00\x00"
    channel.receive_data(len(frame).to_bytes(4, "big") + frame, 1.0)
    [(header, _)] = requests_in(channel.data_to_send())
    assert header.request_api_version == 0


def test_other_error_of_api_versions_closes_with_its_code() -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    channel.receive_data(answer(ApiVersionsResponse(error_code=42), 4, 0), 1.0)
    event = closed(channel)
    assert event.reason is CloseReason.PROTOCOL
    assert event.error is not None
    assert event.error.code is not None
    assert event.error.code.name == "INVALID_REQUEST"


@pytest.mark.parametrize("length", [b"\0", b"\1"], ids=["null", "empty"])
def test_versions_answer_without_any_api_is_damaged_and_not_an_old_broker(length: bytes) -> None:
    """The connection is closed and another one is tried, because every broker supports some API."""
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    body = (0).to_bytes(4, "big") + b"\0\0" + length + b"\0\0\0\0" + b"\0"
    channel.receive_data(len(body).to_bytes(4, "big") + body, 1.0)
    event = closed(channel)
    assert event.reason is CloseReason.PROTOCOL
    assert isinstance(event.error, DecodeError)
    assert "lists no API" in str(event.error)


@pytest.mark.parametrize(("asked", "throttle"), [(4, 250), (1, 0)])
def test_throttle_of_api_versions_counts_from_version_2(asked: int, throttle: int) -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    if asked < 4:
        refusal = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(18, 0, asked)])
        channel.receive_data(answer(refusal, 0, 0), 1.0)
    correlation_id = len(requests_in(channel.data_to_send())) - 1
    channel.receive_data(answer(versions_answer(throttle_time_ms=250), asked, correlation_id), 1.0)
    assert taken(channel) == [Ready(throttle)]


def test_negotiate_takes_highest_shared_version_under_the_cap() -> None:
    channel = ready_channel({3: (2, 9), 18: (0, 4)})
    assert channel.negotiate(3) == 9
    assert channel.negotiate(3, 12) == 9
    assert channel.negotiate(3, 9) == 9
    assert channel.negotiate(3, 4) == 4
    assert channel.negotiate(3, 2) == 2


@pytest.mark.parametrize(("api_key", "cap"), [(3, 1), (0, None), (9999, None)])
def test_negotiate_without_common_version_raises_not_sent(api_key: int, cap: int | None) -> None:
    channel = ready_channel({3: (2, 9)})
    with pytest.raises(UnsupportedVersion) as caught:
        channel.negotiate(api_key, cap)
    assert caught.value.outcome is Outcome.NOT_SENT


# -- requests and responses -----------------------------------------------------------------------


def test_request_and_answer_whole() -> None:
    channel = ready_channel()
    request = send(channel)
    [(header, message)] = requests_in(channel.data_to_send())
    assert (header.correlation_id, header.request_api_version) == (1, VERSION)
    assert message == METADATA
    channel.receive_data(metadata_answer(1), 3.0)
    [event] = taken(channel)
    assert isinstance(event, Completed)
    assert event.request is request
    assert event.body.cluster_id == "c1"
    assert event.error is None
    assert len(channel.in_flight) == 0


def test_answer_byte_by_byte_completes_with_the_last_byte() -> None:
    channel = ready_channel()
    send_and_write(channel)
    data = metadata_answer(1)
    for index in range(len(data)):
        assert taken(channel) == []
        channel.receive_data(data[index : index + 1], 3.0)
    [event] = taken(channel)
    assert isinstance(event, Completed)
    assert event.body.cluster_id == "c1"


def test_answers_in_one_read_complete_in_order() -> None:
    channel = ready_channel()
    requests = send_and_write(channel, 3)
    channel.receive_data(b"".join(metadata_answer(i) for i in (1, 2, 3)), 3.0)
    events = taken(channel)
    assert [e.request for e in events if isinstance(e, Completed)] == requests
    assert [e.body.cluster_id for e in events if isinstance(e, Completed)] == ["c1", "c2", "c3"]


def test_answer_is_decoded_in_the_version_of_its_request() -> None:
    channel = ready_channel()
    for index, version in enumerate((1, 12, 8), 1):
        send(channel, version=version)
        channel.receive_data(metadata_answer(index, version), 3.0)
    assert [e.body.controller_id for e in taken(channel) if isinstance(e, Completed)] == [-1] * 3
    assert channel.state is State.READY


@pytest.mark.parametrize("version", range(MetadataRequest.max_version + 1))
def test_f63_trailing_bytes_close_the_connection(version: int) -> None:
    channel = ready_channel()
    message = MetadataRequest(topics=[])
    requests = [send(channel, version=version, message=message) for _ in range(2)]
    channel.data_to_send()
    good = metadata_answer(1, version)
    frame = good[4:] + b"\xff"
    channel.receive_data(len(frame).to_bytes(4, "big") + frame, 3.0)
    events = taken(channel)
    assert [e.request for e in events if isinstance(e, Completed)] == requests
    assert [type(e.error) for e in events if isinstance(e, Completed)] == [DecodeError] * 2
    last = events[-1]
    assert isinstance(last, Closed)
    assert (last.reason, type(last.error)) == (CloseReason.PROTOCOL, DecodeError)


@pytest.mark.parametrize("keep", range(4, len(metadata_answer(1)) - 4))
def test_f63_truncated_body_closes_the_connection(keep: int) -> None:
    channel = ready_channel()
    send_and_write(channel)
    frame = metadata_answer(1)[4 : 4 + keep]
    channel.receive_data(len(frame).to_bytes(4, "big") + frame, 3.0)
    event = closed(channel)
    assert event.reason is CloseReason.PROTOCOL
    assert isinstance(event.error, DecodeError)


def test_f61_wrong_correlation_id_closes_and_fails_oldest_first_as_maybe_written() -> None:
    channel = ready_channel()
    requests = send_and_write(channel, 3)
    channel.receive_data(metadata_answer(2), 3.0)
    *failed, last = taken(channel)
    assert [e.request for e in failed if isinstance(e, Completed)] == requests
    for event in failed:
        assert isinstance(event, Completed)
        assert isinstance(event.error, CorrelationMismatch)
        assert event.error.retriable
        assert event.error.outcome is Outcome.UNKNOWN
        assert event.request.maybe_written
    assert isinstance(last, Closed)
    assert last.reason is CloseReason.PROTOCOL


def test_f61_answer_that_nobody_asked_for_closes() -> None:
    channel = ready_channel()
    channel.receive_data(metadata_answer(1), 3.0)
    assert closed(channel).reason is CloseReason.PROTOCOL


def test_answer_before_any_request_closes() -> None:
    channel = new_channel()
    channel.receive_data(metadata_answer(0), 3.0)
    assert closed(channel).reason is CloseReason.PROTOCOL


@pytest.mark.parametrize(
    ("length", "error"),
    [
        (-1, DecodeError),
        (-(2**31), DecodeError),
        (0, DecodeError),
        (3, DecodeError),
        ((4 << 20) + 1, FrameTooLarge),
        (2**31 - 1, FrameTooLarge),
    ],
)
def test_f62_senseless_frame_length_closes_at_once(length: int, error: type[ProtocolError]) -> None:
    channel = ready_channel()
    send_and_write(channel)
    channel.receive_data(length.to_bytes(4, "big", signed=True), 3.0)
    event = closed(channel)
    assert event.reason is CloseReason.PROTOCOL
    assert type(event.error) is error


@pytest.mark.parametrize("length", [-1, 3, 2**31 - 1])
def test_f62_answers_before_a_damaged_frame_in_one_read_count(length: int) -> None:
    channel = ready_channel()
    requests = send_and_write(channel, 3)
    damaged = length.to_bytes(4, "big", signed=True) + metadata_answer(3)[4:]
    channel.receive_data(metadata_answer(1) + metadata_answer(2) + damaged, 3.0)
    *ended, last = taken(channel)
    assert [e.request for e in ended if isinstance(e, Completed)] == requests
    bodies = [e.body and e.body.cluster_id for e in ended if isinstance(e, Completed)]
    assert bodies == ["c1", "c2", None]
    errors = [e.error is None for e in ended if isinstance(e, Completed)]
    assert errors == [True, True, False]
    assert isinstance(last, Closed)
    assert last.reason is CloseReason.PROTOCOL
    assert isinstance(last.error, ProtocolError)


def test_f62_frame_limit_is_smaller_before_ready() -> None:
    big = (HANDSHAKE_MAX_BYTES + 1).to_bytes(4, "big")
    early = new_channel()
    early.transport_up(1.0, 11.0)
    early.receive_data(big, 1.0)
    error = closed(early).error
    assert isinstance(error, FrameTooLarge)
    assert "the limit is 1048576 until the handshake is done" in error.message
    late = ready_channel()
    send_and_write(late)
    late.receive_data(big, 1.0)
    assert late.state is State.READY


def test_f62_frame_limit_before_ready_respects_a_smaller_setting() -> None:
    channel = new_channel(receive_max_bytes=2048)
    channel.transport_up(1.0, 11.0)
    channel.receive_data((2049).to_bytes(4, "big"), 1.0)
    error = closed(channel).error
    assert isinstance(error, FrameTooLarge)
    assert "2049 bytes announced, the limit is 2048 (receive_max_bytes)" in error.message


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (bytes.fromhex("15030100020246"), "TLS"),
        (bytes.fromhex("15030300020250"), "TLS"),
        (bytes.fromhex("1603030031"), "TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
    ],
)
def test_f65_tls_or_http_answer_is_named(data: bytes, word: str) -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    channel.receive_data(data, 1.0)
    event = closed(channel)
    assert event.reason is CloseReason.PROTOCOL
    assert event.error is not None
    assert word in event.error.message


def test_request_that_cannot_be_encoded_leaves_the_channel_unchanged() -> None:
    channel = ready_channel()
    with pytest.raises(UnsupportedVersion):
        send(channel, version=99)
    with pytest.raises(ValueError, match="MetadataRequest"):
        send(channel, message=MetadataRequest(topics=7))  # type: ignore[arg-type]
    assert len(channel.in_flight) == 0
    assert channel.data_to_send() == []
    assert send(channel).correlation_id == 1


def test_correlation_id_wraps_at_int32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_MAX_CORRELATION_ID", 2)
    channel = ready_channel()
    ids = []
    for _ in range(4):
        ids.append(send(channel).correlation_id)
        channel.receive_data(metadata_answer(ids[-1]), 3.0)
    assert ids == [1, 2, 0, 1]
    assert len(taken(channel)) == 4


def test_empty_chunks_are_not_handed_to_the_transport() -> None:
    """CPython 3.12 keeps an empty chunk behind a partial write, and then busy-loops on it."""
    channel = ready_channel()
    records: Any = [b"", b"abc", b""]
    message = ProduceRequest(
        acks=-1,
        timeout_ms=1,
        topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])],
    )
    send(channel, message=message, version=9)
    chunks = channel.data_to_send()
    assert all(chunks)
    [(_, decoded)] = requests_in(chunks)
    assert isinstance(decoded, ProduceRequest)
    stored: Any = decoded.topic_data[0].partition_data[0].records
    assert bytes(stored) == b"abc"


def test_record_chunks_are_handed_over_without_copying() -> None:
    channel = ready_channel()
    batch = bytes(10_000)
    records: Any = [batch]
    message = ProduceRequest(
        acks=-1,
        timeout_ms=1,
        topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])],
    )
    send(channel, message=message, version=9)
    assert any(chunk is batch for chunk in channel.data_to_send())


def test_room_is_bounded_by_max_in_flight() -> None:
    channel = ready_channel(max_in_flight=2)
    send(channel)
    assert channel.can_send
    send(channel)
    assert not current(channel.can_send)
    with pytest.raises(NotReady):
        send(channel)
    channel.receive_data(metadata_answer(1), 3.0)
    assert channel.can_send


# -- acks=0 ---------------------------------------------------------------------------------------


def test_request_without_answer_ends_when_written_although_older_ones_wait() -> None:
    channel = ready_channel()
    older = send(channel)
    newest = send(channel, expect_response=False)
    channel.data_to_send()
    assert taken(channel) == []
    channel.write_completed()
    assert taken(channel) == [Completed(newest, None, None)]
    assert list(channel.in_flight) == [older]


def test_write_completed_leaves_requests_that_expect_an_answer() -> None:
    channel = ready_channel()
    channel.write_completed()
    send_and_write(channel)
    channel.write_completed()
    assert len(channel.in_flight) == 1
    assert taken(channel) == []


def test_answer_to_a_request_without_answer_closes() -> None:
    channel = ready_channel()
    send(channel, expect_response=False)
    channel.data_to_send()
    channel.receive_data(metadata_answer(1), 3.0)
    assert isinstance(closed(channel).error, CorrelationMismatch)


# -- closing --------------------------------------------------------------------------------------


def test_f4_eof_inside_a_frame_drops_it_and_fails_oldest_first() -> None:
    channel = ready_channel()
    requests = send_and_write(channel, 3)
    channel.receive_data(metadata_answer(1) + metadata_answer(2)[:-1], 3.0)
    channel.receive_eof()
    first, *failed, last = taken(channel)
    assert isinstance(first, Completed)
    assert first.body is not None
    assert [e.request for e in failed if isinstance(e, Completed)] == requests[1:]
    assert all(isinstance(e, Completed) and isinstance(e.error, Disconnected) for e in failed)
    assert isinstance(last, Closed)
    assert last.reason is CloseReason.EOF


@pytest.mark.parametrize(
    ("state", "with_eof", "with_error"),
    [
        (State.CONNECTING, CloseReason.NEVER_CONNECTED, CloseReason.NEVER_CONNECTED),
        (State.CHECKING_API_VERSIONS, CloseReason.EOF, CloseReason.RESET),
        (State.AUTHENTICATING, CloseReason.DURING_AUTH, CloseReason.DURING_AUTH),
        (State.READY, CloseReason.EOF, CloseReason.RESET),
        (State.CLOSING, CloseReason.EOF, CloseReason.RESET),
    ],
)
def test_eof_reason_tells_where_the_connection_was(
    state: State, with_eof: CloseReason, with_error: CloseReason
) -> None:
    channel = new_channel()
    channel.state = state
    channel.receive_eof()
    assert closed(channel).reason is with_eof
    channel = new_channel()
    channel.state = state
    cause = ConnectionResetError("reset")
    channel.receive_eof(cause)
    event = closed(channel)
    assert event.reason is with_error
    assert event.error is not None
    assert event.error.__cause__ is cause


def test_text_of_a_lost_connection_tells_a_close_from_an_error() -> None:
    channel = new_channel()
    channel.state = State.READY
    channel.receive_eof()
    error = closed(channel).error
    assert error is not None
    assert error.message == f"{channel.peer}: closed the connection"
    channel = new_channel()
    channel.state = State.READY
    channel.receive_eof(ConnectionResetError("reset by peer"))
    error = closed(channel).error
    assert error is not None
    assert error.message == f"{channel.peer}: connection broken: reset by peer"


def test_f65_eof_before_the_first_answer_hints_at_the_listener() -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    channel.receive_eof()
    error = closed(channel).error
    assert error is not None
    assert "TLS" in error.message


def test_failure_marks_only_written_requests_as_maybe_written() -> None:
    channel = ready_channel()
    send(channel)
    channel.data_to_send()
    send(channel)
    channel.fail(CloseReason.TIMEOUT, RequestTimedOut("late"))
    first, second, last = taken(channel)
    assert isinstance(first, Completed)
    assert isinstance(second, Completed)
    assert (first.request.maybe_written, second.request.maybe_written) == (True, False)
    assert first.error is not None
    assert second.error is not None
    assert first.error.outcome is Outcome.UNKNOWN
    assert second.error.outcome is Outcome.NOT_SENT
    assert first.error is not second.error
    assert isinstance(last, Closed)
    assert first.error.__cause__ is last.error
    assert channel.data_to_send() == []


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (Disconnected("x"), True),
        (RequestTimedOut("x"), True),
        (DecodeError("x"), True),
        (ProducerClosed("x"), False),
        (AuthenticationError("x"), False),
    ],
)
def test_failure_of_a_connection_is_retriable_elsewhere(error: KafkaError, retriable: bool) -> None:
    channel = ready_channel()
    send_and_write(channel)
    channel.fail(CloseReason.PROTOCOL, error)
    event = taken(channel)[0]
    assert isinstance(event, Completed)
    assert event.error is not None
    assert event.error.retriable is retriable


def test_failure_during_the_handshake_reports_only_the_end() -> None:
    channel = new_channel()
    channel.transport_up(1.0, 11.0)
    channel.fail(CloseReason.TIMEOUT, RequestTimedOut("late"))
    assert [type(event) for event in taken(channel)] == [Closed]
    assert len(channel.in_flight) == 0


def test_closed_channel_ignores_everything() -> None:
    channel = ready_channel()
    send_and_write(channel)
    channel.fail(CloseReason.TIMEOUT, RequestTimedOut("late"))
    taken(channel)
    channel.receive_data(metadata_answer(1), 3.0)
    channel.receive_eof()
    channel.fail(CloseReason.LOCAL, Disconnected("again"))
    channel.close()
    channel.write_completed()
    assert taken(channel) == []
    assert not channel.events
    assert channel.close_reason is CloseReason.TIMEOUT


def test_close_when_idle_is_immediate_and_not_an_error() -> None:
    channel = ready_channel()
    channel.close()
    assert taken(channel) == [Closed(CloseReason.LOCAL, None)]
    assert channel.close_reason is CloseReason.LOCAL


def test_close_waits_for_open_requests_and_accepts_no_new_ones() -> None:
    channel = ready_channel()
    send_and_write(channel, 2)
    channel.close()
    channel.close()
    assert channel.state is State.CLOSING
    assert not channel.can_send
    with pytest.raises(NotReady):
        send(channel)
    channel.receive_data(metadata_answer(1), 3.0)
    assert channel.state is State.CLOSING
    channel.receive_data(metadata_answer(2), 3.0)
    assert closed(channel) == Closed(CloseReason.LOCAL, None)


def test_close_waits_for_the_write_of_a_request_without_answer() -> None:
    channel = ready_channel()
    send(channel, expect_response=False)
    channel.data_to_send()
    channel.close()
    assert channel.state is State.CLOSING
    channel.write_completed()
    assert closed(channel).reason is CloseReason.LOCAL


def test_frame_after_the_last_answer_of_a_closing_channel_is_ignored() -> None:
    channel = ready_channel()
    send_and_write(channel)
    channel.close()
    channel.receive_data(metadata_answer(1) + metadata_answer(2), 3.0)
    assert closed(channel) == Closed(CloseReason.LOCAL, None)


@pytest.mark.parametrize("state", [State.CONNECTING, State.CHECKING_API_VERSIONS])
def test_close_before_ready_is_immediate(state: State) -> None:
    channel = new_channel()
    if state is State.CHECKING_API_VERSIONS:
        channel.transport_up(1.0, 11.0)
    channel.close()
    assert closed(channel).reason is CloseReason.LOCAL


def test_repr_names_peer_state_and_reason() -> None:
    channel = ready_channel()
    assert "ready" in repr(channel)
    channel.close()
    assert "closed, local" in repr(channel)


# -- authentication interface ---------------------------------------------------------------------


class FakeMechanism:
    """A mechanism whose steps are given by `script`."""

    def __init__(self, *script: AuthenticationStep | KafkaError | None) -> None:
        self.script = list(script)
        self.seen: list[Message] = []

    def _next(self) -> AuthenticationStep | None:
        step = self.script.pop(0)
        if isinstance(step, KafkaError):
            raise step
        return step

    def start(self, versions: Any) -> AuthenticationStep | None:
        assert versions
        return self._next()

    def receive(self, response: Message) -> AuthenticationStep | None:
        self.seen.append(response)
        return self._next()


HANDSHAKE = SendToBroker(SaslHandshakeRequest("PLAIN"), 1)
CHALLENGE = SendToBroker(SaslAuthenticateRequest(b"secret"), 2)


def authenticating(mechanism: FakeMechanism) -> KafkaChannel:
    channel = new_channel(authenticator=mechanism)
    channel.transport_up(1.0, 11.0, authentication_timeout=8.0)
    channel.data_to_send()
    channel.receive_data(answer(versions_answer(), 4, 0), 3.0)
    return channel


def test_authentication_exchange_leads_to_ready() -> None:
    mechanism = FakeMechanism(HANDSHAKE, CHALLENGE, Authenticated(600.0))
    channel = authenticating(mechanism)
    assert channel.state is State.AUTHENTICATING
    assert taken(channel) == []
    [(header, _)] = requests_in(channel.data_to_send())
    assert (header.request_api_key, header.correlation_id) == (17, 1)
    assert channel.in_flight.earliest_deadline() == 11.0, "8 s from its start"
    channel.receive_data(answer(SaslHandshakeResponse(mechanisms=["PLAIN"]), 1, 1), 2.0)
    [(header, message)] = requests_in(channel.data_to_send())
    assert isinstance(message, SaslAuthenticateRequest)
    channel.receive_data(answer(SaslAuthenticateResponse(), 2, 2), 2.0)
    assert current(channel.state) is State.READY
    assert taken(channel) == [Ready(0)]
    assert channel.session_lifetime_s == 600.0
    assert [type(m) for m in mechanism.seen] == [SaslHandshakeResponse, SaslAuthenticateResponse]


def test_authentication_refused_closes_with_its_error() -> None:
    refused = AuthenticationError("wrong password")
    channel = authenticating(FakeMechanism(HANDSHAKE, refused))
    channel.receive_data(answer(SaslHandshakeResponse(), 1, 1), 2.0)
    assert closed(channel) == Closed(CloseReason.AUTH_FAILED, refused)


def test_authentication_impossible_from_the_start_closes() -> None:
    refused = AuthenticationError("mechanism not offered")
    channel = authenticating(FakeMechanism(refused))
    assert closed(channel) == Closed(CloseReason.AUTH_FAILED, refused)


def test_authentication_step_may_come_later() -> None:
    channel = authenticating(FakeMechanism(None))
    assert channel.state is State.AUTHENTICATING
    assert channel.data_to_send() == []
    channel.authentication_step(CHALLENGE, 2.0)
    assert len(requests_in(channel.data_to_send())) == 1


def test_late_authentication_step_of_a_lost_connection_is_dropped() -> None:
    channel = authenticating(FakeMechanism(None))
    channel.receive_eof()
    channel.authentication_step(CHALLENGE, 2.0)
    assert channel.data_to_send() == []
    assert closed(channel).reason is CloseReason.DURING_AUTH


def test_reauthentication_holds_new_requests_until_done() -> None:
    mechanism = FakeMechanism(Authenticated(60.0), HANDSHAKE, Authenticated(30.0))
    channel = authenticating(mechanism)
    taken(channel)
    send_and_write(channel)
    with pytest.raises(NotReady):
        channel.reauthenticate(50.0, 60.0)
    channel.receive_data(answer(MetadataResponse(), VERSION, 1), 2.0)
    taken(channel)
    channel.reauthenticate(50.0, 60.0)
    assert channel.state is State.AUTHENTICATING
    assert not channel.can_send
    assert channel.in_flight.earliest_deadline() == 60.0
    channel.receive_data(answer(SaslHandshakeResponse(), 1, 2), 51.0)
    assert current(channel.state) is State.READY
    assert channel.session_lifetime_s == 30.0


def test_p10_step_with_credentials_does_not_show_them() -> None:
    assert "secret" not in repr(CHALLENGE)


# -- arbitrary bytes ------------------------------------------------------------------------------


def script() -> bytes:
    return b"".join(
        [
            answer(versions_answer(), 4, 0),
            *(metadata_answer(i) for i in (1, 2)),
            answer(ProduceResponse(throttle_time_ms=7), 9, 3),
        ]
    )


def test_session_whole_after_ready_equals_byte_by_byte() -> None:
    data = script()
    end = 4 + int.from_bytes(data[:4], "big")
    versions, rest = data[:end], data[end:]

    def session(chunks: list[bytes]) -> list[Any]:
        channel = new_channel()
        channel.transport_up(1.0, 11.0)
        channel.receive_data(versions, 1.0)
        for _ in range(2):
            send(channel)
        send(channel, message=ProduceRequest(acks=1, timeout_ms=1), version=9)
        for chunk in chunks:
            channel.receive_data(chunk, 2.0)
        return [e.body for e in taken(channel) if isinstance(e, Completed)]

    whole = session([rest])
    assert len(whole) == 3
    assert session([rest[i : i + 1] for i in range(len(rest))]) == whole
    rng = random.Random(7)
    for _ in range(50):
        cuts = sorted(rng.sample(range(len(rest)), 4))
        parts = [rest[a:b] for a, b in itertools.pairwise([0, *cuts, len(rest)])]
        assert session(parts) == whole


@given(st.binary(max_size=20), st.lists(st.integers(0, 80), max_size=5).map(sorted))
def test_damage_ends_the_same_requests_however_the_bytes_arrive(
    damage: bytes, cuts: list[int]
) -> None:
    data = metadata_answer(1) + metadata_answer(2) + damage

    def session(chunks: list[bytes]) -> list[Any]:
        channel = ready_channel()
        send_and_write(channel, 3)
        for chunk in chunks:
            channel.receive_data(chunk, 2.0)
        return [
            (e.body, type(e.error), str(e.error)) if isinstance(e, Completed) else type(e)
            for e in taken(channel)
        ]

    parts = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
    assert session(parts) == session([data])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.booleans())
def test_p9_any_bytes_end_in_a_defined_state(chunks: list[bytes], when_ready: bool) -> None:
    channel = ready_channel() if when_ready else new_channel()
    if when_ready:
        send_and_write(channel, 2)
    else:
        channel.transport_up(1.0, 11.0)
    for chunk in chunks:
        channel.receive_data(chunk, 2.0)
    channel.receive_eof()
    assert isinstance(closed(channel).error, Disconnected | ProtocolError)


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=4, max_size=200))
def test_p9_any_frame_ends_in_a_defined_state(frame: bytes) -> None:
    channel = ready_channel()
    send_and_write(channel, 2)
    channel.receive_data(len(frame).to_bytes(4, "big") + frame, 2.0)
    assert channel.state in (State.READY, State.CLOSED)
    assert len(channel.in_flight) in (0, 1)
