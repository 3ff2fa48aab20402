from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from aiokprod._net.channel import KafkaChannel
from aiokprod._net.channel_states import CloseReason, State
from aiokprod._net.connection import Connection
from aiokprod._net.in_flight import Response
from aiokprod._wire.message import Message
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataResponse
from aiokprod._wire.messages.produce import ProduceRequest, ProduceResponse
from aiokprod.errors import (
    DecodeError,
    Disconnected,
    Outcome,
    ProtocolError,
    RequestTimedOut,
)
from tests.current import current
from tests.net.fakes import FakeTransport, HandLoop, Recorder
from tests.net.wire_helpers import answer, versions_answer

METADATA = MetadataRequest(topics=None)
VERSION = 12


class Setup:
    """A connection with its loop, transport and owner, by default in state READY."""

    def __init__(
        self, *, ready: bool = True, max_idle: float = math.inf, max_in_flight: int = 5
    ) -> None:
        self.loop = HandLoop()
        self.owner = Recorder()
        self.channel = KafkaChannel(
            peer="broker h:1 (id 1)",
            client_id="me",
            max_in_flight=max_in_flight,
            receive_max_bytes=1 << 20,
            software_version="1",
        )
        loop: Any = self.loop
        self.connection = Connection(1, self.channel, loop, self.owner, max_idle)
        self.connection.setup_deadline = self.loop.now + 10.0
        self.transport = FakeTransport(self.connection, self.loop)
        self.done: list[Response] = []
        self.correlation_id = 0
        if ready:
            self.connect()
            self.owner.log.clear()

    def connect(self) -> None:
        self.connection.connection_made(self.transport)
        self.connection.data_received(answer(versions_answer(), 4, 0))
        self.transport.written.clear()

    def send(
        self, message: Message = METADATA, version: int = VERSION, **kwargs: Any
    ) -> list[Response]:
        """Send one request. Its response is appended to the returned list."""
        done: list[Response] = []
        options: dict[str, Any] = {
            "now": self.loop.now,
            "timeout": 30.0,
            "max_version": version,
        } | kwargs

        def on_done(response: Response) -> None:
            done.append(response)
            self.done.append(response)

        self.connection.send(message, on_done, **options)
        return done

    def answer(self, correlation_id: int, message: Message | None = None) -> None:
        self.connection.data_received(self.frame(correlation_id, message))

    def frame(self, correlation_id: int, message: Message | None = None) -> bytes:
        return answer(message or MetadataResponse(), VERSION, correlation_id)

    @property
    def can_send(self) -> bool:
        return self.connection.can_send(self.loop.now)


# -- connecting -----------------------------------------------------------------------------------


def test_connection_made_sends_api_versions_and_reports_ready_after_the_answer() -> None:
    setup = Setup(ready=False)
    setup.connection.connection_made(setup.transport)
    assert [h.request_api_key for h, _ in setup.transport.requests()] == [18]
    assert setup.transport.high == 0
    assert not setup.can_send
    assert setup.connection.was_up
    setup.connection.data_received(answer(versions_answer(), 4, 0))
    assert setup.owner.log == [("ready",)]
    assert current(setup.can_send)
    assert setup.connection.was_ready


def test_downgrade_of_api_versions_is_written_without_a_further_event() -> None:
    from aiokprod._wire.messages.api_versions import ApiVersionsResponse

    setup = Setup(ready=False)
    setup.connection.connection_made(setup.transport)
    setup.connection.data_received(answer(ApiVersionsResponse(error_code=35), 0, 0))
    assert [h.request_api_version for h, _ in setup.transport.requests()] == [4, 0]


def test_connection_made_after_the_attempt_was_given_up_aborts() -> None:
    setup = Setup(ready=False)
    setup.connection.fail(CloseReason.NEVER_CONNECTED, Disconnected("too late"))
    setup.connection.connection_made(setup.transport)
    assert setup.transport.how_closed == ["abort"]
    assert not setup.connection.gone
    setup.loop.settle()
    assert current(setup.connection.gone)
    assert setup.transport.written == b""


def test_f65_silent_peer_is_given_up_within_the_setup_timeout() -> None:
    setup = Setup(ready=False)
    setup.connection.connection_made(setup.transport)
    setup.loop.advance_to(109.9)
    assert setup.owner.log == []
    setup.loop.advance_to(110.0)
    _, reason, error = setup.owner.log[0]
    assert reason is CloseReason.TIMEOUT
    assert isinstance(error, RequestTimedOut)
    assert "TLS" in error.message
    assert setup.transport.how_closed == ["abort"]


# -- requests and responses -----------------------------------------------------------------------


def test_request_is_written_at_once_and_answer_completes_it() -> None:
    setup = Setup()
    done = setup.send()
    assert [m for _, m in setup.transport.requests()] == [METADATA]
    assert done == []
    setup.loop.now += 0.25
    setup.answer(1)
    [response] = done
    assert response.body == MetadataResponse()
    assert (response.node_id, response.version, response.error) == (1, VERSION, None)
    assert response.maybe_written
    assert response.latency == 0.25
    assert response.throttle_ms == 0
    assert setup.owner.log == [("progress",)]


def test_answers_of_one_read_wake_the_owner_once() -> None:
    setup = Setup()
    for _ in range(3):
        setup.send()
    setup.connection.data_received(b"".join(setup.frame(i) for i in (1, 2, 3)))
    assert len(setup.done) == 3
    assert setup.owner.log == [("progress",)]


def test_callback_may_send_again_and_order_is_kept() -> None:
    setup = Setup(max_in_flight=2)
    order: list[str] = []

    def again(response: Response) -> None:
        order.append("first")
        setup.send()

    setup.connection.send(METADATA, again, 100.0, timeout=30.0, max_version=VERSION)
    setup.connection.send(
        METADATA, lambda r: order.append("second"), 100.0, timeout=30.0, max_version=VERSION
    )
    setup.connection.data_received(setup.frame(1) + setup.frame(2))
    assert order == ["first", "second"]
    assert len(setup.transport.requests()) == 3
    setup.answer(3)
    assert len(setup.done) == 1


def test_callback_may_close_the_connection() -> None:
    setup = Setup()
    setup.connection.send(
        METADATA, lambda r: setup.connection.close(), 100.0, timeout=30.0, max_version=VERSION
    )
    setup.answer(1)
    assert setup.channel.state is State.CLOSED
    assert setup.transport.how_closed == ["close"]
    assert setup.owner.names() == ["closed", "progress"]


def test_raising_callback_is_reported_and_the_others_still_run() -> None:
    setup = Setup()
    error = RuntimeError("bug above")

    def bad(response: Response) -> None:
        raise error

    setup.connection.send(METADATA, bad, 100.0, timeout=30.0, max_version=VERSION)
    done = setup.send()
    setup.connection.data_received(setup.frame(1) + setup.frame(2))
    assert ("callback failed", error) in setup.owner.log
    assert len(done) == 1
    assert setup.can_send


def test_encoding_error_is_reported_and_nothing_is_written() -> None:
    setup = Setup()
    done = setup.send(MetadataRequest(topics=3))  # type: ignore[arg-type]
    assert setup.transport.written == b""
    assert setup.can_send
    setup.loop.advance_to(200.0)
    assert isinstance(done[0].error, ProtocolError)
    assert (done[0].version, done[0].maybe_written) == (VERSION, False)
    assert setup.owner.log == [("progress",)]


def test_throttle_is_reported_before_the_callback_and_counts_for_newer_versions_only() -> None:
    setup = Setup()
    throttled = MetadataResponse(throttle_time_ms=500)
    done = setup.send()
    setup.answer(1, throttled)
    assert setup.owner.log == [("throttled", 0.5), ("progress",)]
    assert done[0].throttle_ms == 500
    setup.owner.log.clear()
    done = setup.send(version=5)
    setup.connection.data_received(answer(throttled, 5, 2))
    assert setup.owner.log == [("progress",)]
    assert done[0].throttle_ms == 500


def test_throttle_of_api_versions_is_reported_before_ready() -> None:
    setup = Setup(ready=False)
    setup.connection.connection_made(setup.transport)
    setup.connection.data_received(answer(versions_answer(throttle_time_ms=100), 4, 0))
    assert setup.owner.log == [("throttled", 0.1), ("ready",)]


def test_can_send_waits_for_the_end_of_the_throttle() -> None:
    setup = Setup()
    setup.connection.throttled_until = 101.0
    assert not setup.connection.can_send(100.999)
    assert setup.connection.can_send(101.0)


# -- flow control ---------------------------------------------------------------------------------


@pytest.mark.parametrize("forgets_to_pause", [False, True])
def test_unfinished_write_blocks_further_requests_until_drained(forgets_to_pause: bool) -> None:
    """A connection has one send slot. The newest request must have left completely (Java
    `canSendMore`)."""
    setup = Setup()
    setup.transport.accept = 10
    setup.transport.forgets_to_pause = forgets_to_pause
    setup.send()
    assert not setup.can_send
    setup.transport.drain()
    assert current(setup.can_send)
    assert setup.owner.log == [("progress",)]
    assert len(setup.transport.requests()) == 1


def test_in_flight_limit_blocks_further_requests() -> None:
    setup = Setup(max_in_flight=2)
    setup.send()
    setup.send()
    assert not setup.can_send
    setup.answer(1)
    assert setup.can_send


def test_acks_0_request_is_done_once_written_but_never_inside_send() -> None:
    setup = Setup()
    done = setup.send(ProduceRequest(acks=0, timeout_ms=1), 9, expect_response=False)
    assert done == []
    setup.loop.run_pass()
    [response] = done
    assert (response.body, response.error, response.maybe_written) == (None, None, True)
    assert len(setup.channel.in_flight) == 0
    assert setup.owner.log == [("progress",)]


def test_acks_0_request_waits_for_the_write_buffer_to_drain() -> None:
    setup = Setup()
    older = setup.send()
    setup.transport.accept = 3
    done = setup.send(ProduceRequest(acks=0, timeout_ms=1), 9, expect_response=False)
    setup.loop.settle()
    assert done == []
    setup.transport.drain()
    assert len(done) == 1
    assert done[0].error is None
    assert older == []


def test_acks_0_request_whose_write_never_drains_times_out() -> None:
    setup = Setup()
    setup.transport.accept = 3
    done = setup.send(ProduceRequest(acks=0, timeout_ms=1), 9, expect_response=False)
    setup.loop.advance_to(130.0)
    assert isinstance(done[0].error, RequestTimedOut)


def test_write_that_raises_closes_through_the_loss_path_not_inside_send() -> None:
    setup = Setup()
    setup.transport.write_error = OSError("broken pipe")
    done = setup.send()
    assert done == []
    setup.loop.settle()
    assert isinstance(done[0].error, Disconnected)
    assert setup.owner.log[0][1] is CloseReason.SEND_FAILED
    assert setup.transport.how_closed == ["abort"]


def test_request_on_a_closing_transport_fails_as_not_written() -> None:
    """F11: a request that is sent during the close is retried without an error for the caller."""
    setup = Setup()
    setup.transport.abort()
    done = setup.send()
    assert setup.transport.written == b""
    setup.loop.settle()
    [response] = done
    assert isinstance(response.error, Disconnected)
    assert response.error.outcome is Outcome.NOT_SENT
    assert not response.maybe_written


# -- closing --------------------------------------------------------------------------------------


def test_connection_lost_fails_requests_in_order_before_the_owner_hears_of_it() -> None:
    setup = Setup()
    first, second = setup.send(), setup.send()
    setup.connection.connection_lost(ConnectionResetError("reset"))
    assert setup.done == [*first, *second]
    assert [type(r.error) for r in setup.done] == [Disconnected] * 2
    assert all(r.maybe_written for r in setup.done)
    assert setup.owner.names() == ["closed", "progress", "gone"]
    assert setup.owner.log[0][1] is CloseReason.RESET
    assert setup.connection.gone
    assert setup.loop.armed == []


def test_eof_delivers_complete_frames_first_and_closes_the_transport() -> None:
    setup = Setup()
    first, second = setup.send(), setup.send()
    setup.connection.data_received(setup.frame(1) + setup.frame(2)[:-3])
    assert setup.connection.eof_received() is False
    assert first[0].body is not None
    assert isinstance(second[0].error, Disconnected)
    assert setup.transport.how_closed == ["abort"]


def test_broken_bytes_close_the_connection_and_late_data_are_ignored() -> None:
    setup = Setup()
    done = setup.send()
    setup.connection.data_received(b"\x7f\xff\xff\xff")
    assert isinstance(done[0].error, ProtocolError)
    assert setup.owner.log[0][1] is CloseReason.PROTOCOL
    setup.answer(1)
    assert len(done) == 1


def test_unexpected_exception_while_decoding_closes_only_this_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup()
    done = setup.send()
    caplog.set_level(logging.CRITICAL + 1)
    monkeypatch.setattr(
        setup.channel, "_receive_frame", lambda *args: (_ for _ in ()).throw(RuntimeError("bug"))
    )
    setup.answer(1)
    assert isinstance(done[0].error, ProtocolError)
    assert setup.owner.log[0][1] is CloseReason.PROTOCOL


def test_close_waits_for_answers_then_closes_the_transport() -> None:
    setup = Setup()
    done = setup.send()
    setup.connection.close()
    assert setup.transport.how_closed == []
    assert not setup.can_send
    setup.answer(1)
    assert done[0].error is None
    assert setup.transport.how_closed == ["close"]
    setup.loop.settle()
    assert setup.owner.names() == ["closed", "progress", "gone"]
    assert setup.owner.log[0][1:] == (CloseReason.LOCAL, None)


def test_abort_transport_without_a_transport_does_nothing() -> None:
    setup = Setup(ready=False)
    setup.connection.abort_transport()
    setup.connect()
    setup.connection.abort_transport()
    assert setup.transport.how_closed == ["abort"]


def test_repr_shows_state_and_pause() -> None:
    setup = Setup()
    assert "ready" in repr(setup.connection)
    setup.transport.accept = 0
    setup.send()
    assert "paused" in repr(setup.connection)


# -- timeouts -------------------------------------------------------------------------------------


def test_f5_overdue_request_closes_the_connection_and_fails_all_its_requests() -> None:
    setup = Setup()
    first = setup.send()
    setup.loop.now = 110.0
    second = setup.send()
    setup.loop.advance_to(129.99)
    assert setup.done == []
    setup.loop.advance_to(130.0)
    assert [type(r.error) for r in (*first, *second)] == [RequestTimedOut] * 2
    assert all(r.maybe_written for r in setup.done)
    for response in setup.done:
        assert response.error is not None
        assert response.error.outcome is Outcome.UNKNOWN
    assert setup.owner.log[0][1] is CloseReason.TIMEOUT
    assert setup.transport.how_closed == ["abort"]


def test_f6_late_answer_on_the_closed_connection_is_ignored() -> None:
    setup = Setup()
    done = setup.send()
    setup.loop.advance_to(130.0)
    setup.answer(1)
    assert len(done) == 1


def test_shorter_timeout_of_a_later_request_counts() -> None:
    setup = Setup()
    setup.send()
    setup.send(timeout=5.0)
    setup.loop.advance_to(105.0)
    assert len(setup.done) == 2


def test_answered_requests_cost_no_timer_work_and_leave_no_timer() -> None:
    setup = Setup()
    timers_before = len(setup.loop.timers)
    for i in range(1, 50):
        setup.send()
        setup.answer(i)
        setup.loop.now += 0.01
    assert len(setup.loop.timers) <= timers_before + 1
    setup.loop.advance_to(1000.0)
    assert setup.channel.state is State.READY
    assert setup.loop.armed == []


@pytest.mark.parametrize("early", [20.0, 0.5, 0.01])
def test_timer_set_for_an_answered_exchange_is_set_again(early: float) -> None:
    """The timer of the ApiVersions exchange, due at 110, is not moved when its response arrives."""
    setup = Setup()
    assert setup.loop.armed == [110.0]
    done = setup.send(timeout=10.0 + early)
    setup.loop.advance_to(110.0)
    assert done == []
    assert setup.loop.armed == [110.0 + early]
    setup.loop.advance_to(109.995 + early)
    assert done == []
    setup.loop.advance_to(110.0 + early)
    assert isinstance(done[0].error, RequestTimedOut)


def test_timer_rounded_down_to_a_millisecond_is_not_set_again() -> None:
    """uvloop rounds timers down to a millisecond. A deadline within the same millisecond counts as
    reached."""
    setup = Setup()
    done = setup.send(timeout=10.0009)
    setup.loop.advance_to(110.0)
    assert isinstance(done[0].error, RequestTimedOut)


def test_f66_trickling_peer_still_times_out() -> None:
    """The peer sends one byte per second and never completes a frame."""
    setup = Setup()
    done = setup.send()
    data = (1000).to_bytes(4, "big") + bytes(100)
    for second in range(29):
        setup.loop.advance_to(101.0 + second)
        setup.connection.data_received(data[second : second + 1])
    assert done == []
    setup.loop.advance_to(130.0)
    assert isinstance(done[0].error, RequestTimedOut)


def test_f67_answer_that_arrived_during_a_stall_is_read_before_the_timeout_is_judged() -> None:
    setup = Setup()
    done = setup.send()
    setup.loop.now = 170.0
    setup.loop.fire_due_timers()
    assert done == []
    setup.loop.run_pass()
    setup.answer(1)
    setup.loop.settle()
    assert done[0].error is None
    assert setup.channel.state is State.READY


def test_f67_large_answer_in_several_reads_after_a_stall_is_awaited() -> None:
    setup = Setup()
    done = setup.send()
    setup.loop.now = 170.0
    setup.loop.fire_due_timers()
    data = setup.frame(1)
    for i in range(len(data)):
        setup.loop.run_pass()
        setup.connection.data_received(data[i : i + 1])
        if done:
            break
    setup.loop.settle()
    assert done[0].error is None


def test_f67_peer_that_keeps_sending_can_not_postpone_the_timeout_for_ever() -> None:
    setup = Setup()
    done = setup.send()
    setup.loop.now = 170.0
    setup.loop.fire_due_timers()
    setup.connection.data_received((100_000).to_bytes(4, "big"))
    for _ in range(200):
        setup.loop.run_pass()
        if done:
            break
        setup.connection.data_received(b"x")
        setup.loop.now = max(setup.loop.now, *setup.loop.armed, 0)
        setup.loop.fire_due_timers()
    assert isinstance(done[0].error, RequestTimedOut)


def test_f67_stall_without_an_answer_times_out_after_one_more_second() -> None:
    setup = Setup()
    done = setup.send()
    setup.loop.now = 170.0
    setup.loop.fire_due_timers()
    setup.loop.settle()
    assert done == []
    assert setup.loop.armed == [171.0]
    setup.loop.advance_to(171.0)
    assert isinstance(done[0].error, RequestTimedOut)


def test_f67_second_stall_is_no_further_excuse() -> None:
    setup = Setup()
    done = setup.send()
    for now in (170.0, 180.0):
        assert done == []
        setup.loop.now = now
        setup.loop.fire_due_timers()
        setup.loop.settle()
    assert isinstance(done[0].error, RequestTimedOut)


def test_connection_lost_while_a_timeout_is_judged_wins() -> None:
    setup = Setup()
    done = setup.send()
    setup.loop.now = 170.0
    setup.loop.fire_due_timers()
    setup.connection.connection_lost(None)
    setup.loop.settle()
    assert [type(r.error) for r in done] == [Disconnected]


def test_f9_throttle_time_does_not_count_against_open_requests() -> None:
    setup = Setup()
    setup.send()
    done = setup.send()
    setup.answer(1, MetadataResponse(throttle_time_ms=20_000))
    setup.loop.advance_to(149.99)
    assert done == []
    setup.loop.advance_to(150.0)
    assert isinstance(done[0].error, RequestTimedOut)


# -- idle -----------------------------------------------------------------------------------------


def test_f11_idle_connection_closes_itself() -> None:
    setup = Setup(max_idle=540.0)
    setup.loop.advance_to(639.9)
    assert setup.channel.state is State.READY
    setup.loop.advance_to(640.0)
    assert setup.owner.log[0][1] is CloseReason.IDLE
    assert setup.owner.log[0][2].outcome is Outcome.UNKNOWN


def test_traffic_postpones_the_idle_close() -> None:
    setup = Setup(max_idle=540.0)
    setup.loop.advance_to(500.0)
    setup.send()
    setup.loop.now = 510.0
    setup.answer(1)
    setup.loop.advance_to(1049.0)
    assert setup.channel.state is State.READY
    setup.loop.advance_to(1050.0)
    assert current(setup.channel.state) is State.CLOSED


def test_open_request_is_not_idle() -> None:
    setup = Setup(max_idle=5.0)
    done = setup.send()
    setup.loop.advance_to(129.0)
    assert setup.channel.state is State.READY
    setup.answer(1)
    assert done[0].error is None
    setup.loop.advance_to(134.0)
    assert setup.channel.close_reason is CloseReason.IDLE


def test_p12_idle_connection_wakes_at_most_once_before_its_idle_timer() -> None:
    setup = Setup(max_idle=540.0)
    setup.send()
    setup.answer(1)
    fired = 0
    while setup.loop.armed and setup.channel.state is State.READY:
        setup.loop.advance_to(setup.loop.armed[0])
        fired += 1
    assert fired <= 3


def test_produce_answers_of_several_versions_carry_their_throttle() -> None:
    setup = Setup()
    done = setup.send(ProduceRequest(acks=1, timeout_ms=1), 6)
    setup.connection.data_received(answer(ProduceResponse(throttle_time_ms=3), 6, 1))
    assert done[0].throttle_ms == 3
    assert ("throttled", 0.003) in setup.owner.log
    done = setup.send(ProduceRequest(acks=1, timeout_ms=1), 5)
    setup.owner.log.clear()
    setup.connection.data_received(answer(ProduceResponse(throttle_time_ms=3), 5, 2))
    assert setup.owner.log == [("progress",)]


def test_decode_error_of_the_oldest_fails_it_too() -> None:
    setup = Setup()
    first, second = setup.send(), setup.send()
    setup.connection.data_received((5).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\0")
    assert [type(r.error) for r in (*first, *second)] == [DecodeError] * 2
