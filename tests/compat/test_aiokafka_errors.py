"""An error of the compatible producer is an instance of the error classes of both packages."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import aiokafka.errors as theirs
import pytest

from aiokprod import errors
from aiokprod._compat import aiokafka_errors
from aiokprod._compat.aiokafka_errors import as_theirs
from aiokprod.errors import Code, KafkaError, Outcome, broker_error


def _coded(code: Code) -> KafkaError:
    return broker_error(code, "t-0: text")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.MetadataTimeout("x"), theirs.UnknownTopicOrPartitionError),
        (errors.UnknownTopic("x"), theirs.UnknownTopicOrPartitionError),
        (errors.InvalidTopic("x"), theirs.InvalidTopicError),
        (errors.BufferTimeout("x"), theirs.KafkaTimeoutError),
        (errors.DeliveryTimeout("x"), theirs.KafkaTimeoutError),
        (errors.RequestTimedOut("x"), theirs.RequestTimedOutError),
        (errors.Disconnected("x"), theirs.KafkaConnectionError),
        (errors.DialError("x"), theirs.KafkaConnectionError),
        (errors.RecordTooLarge("x"), theirs.MessageSizeTooLargeError),
        (errors.AuthenticationError("x"), theirs.AuthenticationFailedError),
        (errors.ProducerFenced("x"), theirs.ProducerFenced),
        (errors.ProducerClosed("x"), theirs.ProducerClosed),
        (errors.ProducerFailed("x"), theirs.KafkaError),
        (errors.TransactionError("x"), theirs.IllegalOperation),
        (errors.AbortableTransactionError("x"), theirs.KafkaError),
        (_coded(Code.NOT_LEADER_OR_FOLLOWER), theirs.NotLeaderForPartitionError),
        (_coded(Code.NOT_ENOUGH_REPLICAS), theirs.NotEnoughReplicasError),
        (_coded(Code.TOPIC_AUTHORIZATION_FAILED), theirs.TopicAuthorizationFailedError),
        (_coded(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), theirs.OutOfOrderSequenceNumber),
        (_coded(Code.INVALID_PRODUCER_EPOCH), theirs.ProducerFenced),
        (errors.SerializationError("x"), TypeError),
        (errors.ConfigError("x"), ValueError),
    ],
)
def test_the_class_is_both(error: KafkaError, expected: type[Exception]) -> None:
    joined = as_theirs(error)
    assert isinstance(joined, expected)
    assert isinstance(joined, type(error))
    assert (joined.outcome, joined.code, joined.retriable) == (
        error.outcome, error.code, error.retriable,
    )  # fmt: skip
    assert str(joined) == str(error)
    assert as_theirs(joined) is joined


def test_every_row_names_a_class_of_aiokafka() -> None:
    for ours, name in aiokafka_errors.CLASSES.items():
        assert issubclass(getattr(theirs, name), Exception), ours
        assert isinstance(as_theirs(ours("x")), getattr(theirs, name))


def test_attributes_cause_and_class_are_kept() -> None:
    cause = OSError("below")
    error = errors.DeliveryTimeout("x", outcome=Outcome.NOT_SENT).with_(topic="t", partition=3)
    error.__cause__ = cause
    joined = as_theirs(error)
    assert (joined.topic, joined.partition, joined.outcome) == ("t", 3, Outcome.NOT_SENT)
    assert joined.__cause__ is cause
    assert type(as_theirs(errors.DeliveryTimeout("y"))) is type(joined)  # the class is created once
    assert type(joined).__name__ == "KafkaTimeoutError"


def test_joined_errors_can_be_copied() -> None:
    joined = as_theirs(errors.DeliveryTimeout("x", outcome=Outcome.NOT_SENT))
    again = copy.copy(joined)
    assert type(again) is type(joined)
    assert (again.outcome, str(again)) == (Outcome.NOT_SENT, "x")


def test_joined_errors_can_be_pickled() -> None:
    joined = as_theirs(errors.DeliveryTimeout("x", outcome=Outcome.NOT_SENT))
    again: Any = pickle.loads(pickle.dumps(joined))
    assert isinstance(again, errors.DeliveryTimeout)
    assert isinstance(again, theirs.KafkaTimeoutError)
    assert again.outcome is Outcome.NOT_SENT


def test_without_aiokafka_errors_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokafka_errors, "theirs", None)
    error = errors.DeliveryTimeout("x")
    assert as_theirs(error) is error
    assert isinstance(as_theirs(errors.SerializationError("x")), TypeError)
