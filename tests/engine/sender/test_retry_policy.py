"""The outcome of a batch by error code: one row per code of the protocol, through
`decide` and through the sender, with and without idempotence."""

from __future__ import annotations

import pytest

from aiokprod._core.batch import Delivery
from aiokprod._engine.identity.sequence_errors import SequenceDecision
from aiokprod._engine.sender.retry_policy import Action, decide
from aiokprod.errors import (
    AuthorizationError,
    BrokerError,
    Code,
    InvalidTopic,
    KafkaError,
    Outcome,
    RecordRejected,
    RecordTooLarge,
    UnsupportedVersion,
    error_code,
)
from aiokprod.records import TopicPartition
from tests.engine.engine_harness import PRODUCER_ID, EngineHarness, error_of, offset_of, virtual
from tests.reference.error_codes import CHECKED_BEFORE_THE_APPEND, RETRIED

T0 = TopicPartition("t", 0)

# Written from the Java 4.x exception classes and `Sender`, not from the code under test.
FETCHES_METADATA = {3, 5, 6, 9, 13, 56, 72, 74, 80, 83, 84, 100, 103}
SPLIT = {10, 18}
ENDS_THE_PRODUCER = {31, 35}
RETRIED_IF_IDEMPOTENT = {45, 47, 59}
NEEDS_A_NEW_ID = {47}
SUCCESS_IF_IDEMPOTENT = {46}
UNKNOWN_CODES = [max(Code) + 1, 999, 32767, -2]
ALL = [*map(int, Code), *UNKNOWN_CODES]
ERRORS = [code for code in ALL if code != 0]
CLASSES: dict[int, type[KafkaError]] = {
    Code.MESSAGE_TOO_LARGE: RecordTooLarge,
    Code.INVALID_TOPIC_EXCEPTION: InvalidTopic,
    Code.TOPIC_AUTHORIZATION_FAILED: AuthorizationError,
    Code.CLUSTER_AUTHORIZATION_FAILED: AuthorizationError,
    Code.UNSUPPORTED_VERSION: UnsupportedVersion,
    Code.INVALID_RECORD: RecordRejected,
    Code.INVALID_TIMESTAMP: RecordRejected,
    Code.POLICY_VIOLATION: RecordRejected,
    Code.UNKNOWN_SERVER_ERROR: BrokerError,
}


def verdict(code: int, **facts: object) -> Action:
    arguments = {"records": 1, "attempts": 1, "retries": 10, **facts}
    return decide(error_code(code), **arguments)  # type: ignore[arg-type]


def expected(code: int, *, records: int = 1) -> Action:
    if code == 0:
        return Action.ACKNOWLEDGE
    if code in SPLIT and records > 1:
        return Action.SPLIT
    if code in ENDS_THE_PRODUCER:
        return Action.FATAL
    return Action.RETRY if code in RETRIED else Action.FAIL


# -- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ALL)
def test_decide_follows_the_table(code: int) -> None:
    assert verdict(code) is expected(code)
    assert verdict(code, records=2) is expected(code, records=2)


@pytest.mark.parametrize("code", ALL)
def test_decide_without_retries_left_fails_what_it_would_retry(code: int) -> None:
    want = expected(code)
    assert verdict(code, attempts=11) is (Action.FAIL if want is Action.RETRY else want)
    assert verdict(code, attempts=10) is want


@pytest.mark.parametrize("code", ALL)
def test_decide_takes_a_known_duplicate_as_success(code: int) -> None:
    assert verdict(code, sequence=SequenceDecision.DUPLICATE) is Action.ACKNOWLEDGE


@pytest.mark.parametrize("code", [45, 47, 59])
def test_decide_retries_what_the_sequences_say_can_be_healed(code: int) -> None:
    assert verdict(code) is Action.FAIL
    assert verdict(code, sequence=SequenceDecision.RETRY) is Action.RETRY
    assert verdict(code, sequence=SequenceDecision.RETRY, attempts=11) is Action.FAIL


# -- every code through the sender ----------------------------------------------------------------


async def answered(code: int, *, idempotent: bool) -> None:
    harness = EngineHarness(idempotent=idempotent)
    delivery = harness.append(b"v")
    harness.step()
    harness.pass_time(1)  # end the backoff of the metadata
    harness.brokers.last.refuse(code)
    assert (harness.metadata.next_update_at(harness.now) <= harness.now) == (
        code in FETCHES_METADATA
    )
    harness.publish()
    retried = RETRIED | (RETRIED_IF_IDEMPOTENT if idempotent else set())
    if code in retried:
        assert not delivery.done()
        assert harness.observer.retries == [error_code(code).name]
        harness.step()
        harness.later()
        assert len(harness.brokers.init_requests) == (idempotent and code in NEEDS_A_NEW_ID)
        if harness.brokers.init_requests:
            harness.init_producer(PRODUCER_ID + 1)
            harness.step()
        harness.brokers.last.ack()
        assert offset_of(delivery) == 0
    elif idempotent and code in SUCCESS_IF_IDEMPOTENT:
        assert offset_of(delivery) is None
    else:
        check_error(code, error_of(delivery))
        assert len(harness.brokers.produce) == 1
        ended = idempotent and code in ENDS_THE_PRODUCER
        assert (harness.state.source.fatal_error is not None) == ended
        if not ended:
            await lives(harness)
    harness.step()
    harness.check_idle()


def check_error(code: int, error: KafkaError) -> None:
    assert error.code is not None
    assert error.code.number == code
    definite = code in CHECKED_BEFORE_THE_APPEND
    assert error.outcome is (Outcome.REJECTED if definite else Outcome.UNKNOWN)
    if code in CLASSES:
        assert type(error) is CLASSES[code]


async def lives(harness: EngineHarness) -> None:
    """Check that another record is delivered."""
    delivery = harness.append(b"next")
    harness.step()
    harness.brokers.last.ack()
    assert offset_of(delivery) == 0
    assert harness.brokers.stored(T0) == [b"next"]


@pytest.mark.parametrize("code", ERRORS)
@virtual
async def test_code_to_an_idempotent_producer_has_the_effect_of_the_table(code: int) -> None:
    await answered(code, idempotent=True)


@pytest.mark.parametrize("code", ERRORS)
@virtual
async def test_code_to_a_plain_producer_has_the_effect_of_the_table(code: int) -> None:
    await answered(code, idempotent=False)


@pytest.mark.parametrize("code", ERRORS)
@virtual
async def test_error_of_a_record_is_retriable_if_the_sender_would_have_retried_it(
    code: int,
) -> None:
    """With retries=0 every code fails the record; `.retriable` says what retries would do."""
    harness = EngineHarness(idempotent=False, retries=0)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(code)
    assert error_of(delivery).retriable == (verdict(code) is Action.RETRY) == (code in RETRIED)


def refused_after(code: int) -> Delivery:
    """Return the delivery of a record whose first attempt ended with `code` and whose second
    attempt was refused with a definite error."""
    harness = EngineHarness(idempotent=False)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(code)
    harness.publish()
    harness.later()
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    return delivery


@pytest.mark.parametrize("code", [3, 6, 7, 20, 56])
@virtual
async def test_unknown_outcome_of_an_earlier_attempt_sticks(code: int) -> None:
    """A later refusal proves nothing about the attempt with the unclear result."""
    delivery = refused_after(code)
    assert error_of(delivery).outcome is Outcome.UNKNOWN
    assert "may be in the log" in str(error_of(delivery))


@pytest.mark.parametrize("code", [2, 19, 51])
@virtual
async def test_definite_refusals_before_leave_the_outcome_definite(code: int) -> None:
    assert error_of(refused_after(code)).outcome is Outcome.REJECTED


@pytest.mark.parametrize("idempotent", [True, False])
@virtual
async def test_text_of_cluster_authorization_advises_on_idempotence_only_where_it_is_on(
    idempotent: bool,
) -> None:
    harness = EngineHarness(idempotent=idempotent)
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.CLUSTER_AUTHORIZATION_FAILED)
    assert ("enable_idempotence" in str(error_of(delivery))) is idempotent
    assert ("IdempotentWrite" in str(error_of(delivery))) is idempotent
