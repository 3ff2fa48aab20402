"""`aiokprod.app.http_status`: the status, headers and body of the response for every error."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from aiokprod import JsonSerializer, Producer, StringSerializer, errors
from aiokprod.app import HttpStatus, http_status
from aiokprod.errors import (
    BufferTimeout,
    Code,
    ConfigError,
    DeliveryTimeout,
    KafkaError,
    Outcome,
    ProducerClosed,
    RecordTooLarge,
    SerializationError,
    broker_error,
)
from aiokprod.testing import Api, FakeCluster, run

BY_CLASS = {
    "KafkaError": 504,
    "ConfigError": 500,
    "SerializationError": 422,
    "RecordTooLarge": 413,
    "WouldBlock": 503,
    "BufferFull": 503,
    "MetadataMissing": 503,
    "SchemaMissing": 503,
    "KafkaTimeout": 504,
    "MetadataTimeout": 503,
    "BufferTimeout": 503,
    "DeliveryTimeout": 504,
    "NetworkError": 504,
    "DialError": 503,
    "Disconnected": 504,
    "RequestTimedOut": 504,
    "ProtocolError": 504,
    "DecodeError": 504,
    "FrameTooLarge": 504,
    "CorrelationMismatch": 504,
    "UnsupportedVersion": 500,
    "AuthenticationError": 500,
    "BrokerError": 504,
    "AuthorizationError": 500,
    "UnknownTopic": 504,
    "InvalidTopic": 500,
    "RecordRejected": 500,
    "TransactionError": 504,
    "AbortableTransactionError": 504,
    "FatalTransactionError": 504,
    "ProducerFenced": 500,
    "ProducerClosed": 503,
    "WrongLoop": 500,
    "ForkedProcess": 500,
    "ProducerFailed": 503,
    "NotReady": 500,
}
"""The HTTP status for an error of each class with the default `outcome` and `retriable` of the
class."""

CLASSES = {
    name: value
    for name in errors.__all__
    if isinstance(value := getattr(errors, name), type) and issubclass(value, KafkaError)
}
PAGE = (Path(__file__).parents[2] / "docs" / "applications.md").read_text(encoding="utf-8")


def check_rules(answer: HttpStatus) -> None:
    """Check the rules that apply to all responses."""
    assert answer.may_be_in_log == (answer.status == 504) == (answer.outcome is Outcome.UNKNOWN)
    assert answer.may_repeat == (answer.status == 503) == ("Retry-After" in answer.headers)
    assert answer.body == {
        "error": answer.error,
        "outcome": answer.outcome.value,
        "may_be_in_log": answer.may_be_in_log,
        "may_repeat": answer.may_repeat,
    }
    json.dumps(answer.body)


def test_every_class_of_the_catalogue_has_a_status() -> None:
    assert set(BY_CLASS) == set(CLASSES)


@pytest.mark.parametrize("name", BY_CLASS)
def test_status_by_class(name: str) -> None:
    answer = http_status(CLASSES[name]("the text"))
    check_rules(answer)
    assert (answer.status, answer.error[:8]) == (BY_CLASS[name], "the text")


@pytest.mark.parametrize("name", BY_CLASS)
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("retriable", [True, False])
def test_outcome_is_looked_at_first_and_then_retriable(
    name: str, outcome: Outcome, retriable: bool
) -> None:
    answer = http_status(CLASSES[name]("text", outcome=outcome, retriable=retriable))
    check_rules(answer)
    if outcome is Outcome.UNKNOWN:
        assert answer.status == 504
    elif retriable:
        assert answer.status == 503
    else:
        alike = {"RecordTooLarge": 413, "SerializationError": 422}
        alike |= {"ProducerClosed": 503, "ProducerFailed": 503}
        assert answer.status == alike.get(name, 500)


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.NONE])
def test_status_by_error_code(code: Code) -> None:
    answer = http_status(broker_error(code, "t-0"))
    check_rules(answer)
    fixed_by_the_client = {
        Code.MESSAGE_TOO_LARGE: 413, Code.RECORD_LIST_TOO_LARGE: 413,
        Code.INVALID_RECORD: 422, Code.INVALID_TIMESTAMP: 422,
    }  # fmt: skip
    if code.row.outcome is Outcome.UNKNOWN:
        assert answer.status == 504
    elif code.row.retriable:
        assert answer.status == 503
    else:
        assert answer.status == fixed_by_the_client.get(code, 500)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (504, DeliveryTimeout("text")),
        (504, broker_error(Code.NOT_LEADER_OR_FOLLOWER, "text")),
        (504, ProducerClosed("text", outcome=Outcome.UNKNOWN)),
        (504, TimeoutError()),
        (503, DeliveryTimeout("text", outcome=Outcome.REJECTED)),
        (503, BufferTimeout("text")),
        (503, broker_error(Code.NOT_ENOUGH_REPLICAS, "text")),
        (503, SerializationError("the registry is not reachable", retriable=True)),
        (503, ProducerClosed("text")),
        (413, RecordTooLarge("text")),
        (422, SerializationError("text")),
        (500, broker_error(Code.TOPIC_AUTHORIZATION_FAILED, "text")),
        (500, ConfigError("text")),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_rows_of_the_table(row: int, error: KafkaError | TimeoutError) -> None:
    answer = http_status(error)
    check_rules(answer)
    assert answer.status == row


def test_the_page_has_the_rows_in_order() -> None:
    table = PAGE.split("\n## Handlers\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| (\d{3}) \|", table, re.MULTILINE) == ["504", "503", "413", "422", "500"]
    for name in re.findall(r"^\| \d{3} \|.*", table, re.MULTILINE):
        for named in set(re.findall(r"`([A-Z][a-z]\w+)`", name)) - {"DeliveryTimeout"}:
            assert str(BY_CLASS[named]) in name.split("|")[1]
    assert re.findall(r"^    (\d{3})  ", http_status.__doc__ or "", re.MULTILINE) == [
        "504", "503", "413", "422", "500"
    ]  # fmt: skip


def test_retry_after_is_chosen_by_the_caller() -> None:
    assert http_status(BufferTimeout("text")).headers == {"Retry-After": "1"}
    assert http_status(BufferTimeout("text"), retry_after_s=30).headers == {"Retry-After": "30"}
    assert http_status(DeliveryTimeout("text"), retry_after_s=30).headers == {}


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1"])
def test_retry_after_must_be_whole_seconds(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="http_status: retry_after_s"):
        http_status(BufferTimeout("text"), retry_after_s=wrong)


def test_other_errors_are_not_translated() -> None:
    with pytest.raises(ConfigError, match="a KafkaError or a TimeoutError, not KeyError"):
        http_status(KeyError("x"))  # type: ignore[arg-type]


def test_the_result_is_frozen() -> None:
    answer = http_status(BufferTimeout("text"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.status = 200  # type: ignore[misc]
    assert answer == http_status(BufferTimeout("text"))


SECRET = "do-not-quote-me"


@pytest.mark.parametrize("fault", ["value", "key", "size", Code.INVALID_RECORD])
def test_no_response_quotes_the_record(fault: str | Code) -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(),
            key_serializer=StringSerializer(), value_serializer=JsonSerializer(),
        ) as producer:  # fmt: skip
            if isinstance(fault, Code):
                cluster.fail(Api.PRODUCE, fault)
            key: Any = {SECRET: 1} if fault == "key" else SECRET
            value: Any = {SECRET: object() if fault == "value" else SECRET}
            if fault == "size":
                value = {SECRET: SECRET * 100_000}
            with pytest.raises(KafkaError) as caught:
                await producer.send("t", value, key=key)
        answer = http_status(caught.value)
        check_rules(answer)
        assert answer.status == (413 if fault == "size" else 422)
        assert SECRET not in json.dumps(answer.body)

    run(main, debug=False)
