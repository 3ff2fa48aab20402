from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from aiokprod.errors import KafkaError, ProducerClosed
from aiokprod.interceptors import InterceptorChain
from aiokprod.records import ProducerRecord, RecordMetadata

Record = ProducerRecord[Any, Any]
RECORD: Record = ProducerRecord("t", b"secret value")


class Adding:
    """Appends a letter to the topic and records every call."""

    def __init__(self, letter: str, log: list[str]) -> None:
        self.letter = letter
        self.log = log

    def on_send(self, record: Record) -> Record:
        self.log.append(f"{self.letter} send {record.topic}")
        return dataclasses.replace(record, topic=record.topic + self.letter)

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.log.append(f"{self.letter} ack {metadata is not None} {error is not None}")

    def close(self) -> None:
        self.log.append(f"{self.letter} close")


class Failing(Adding):
    """Raises in every method."""

    def on_send(self, record: Record) -> Record:
        raise ZeroDivisionError

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        raise ZeroDivisionError

    def close(self) -> None:
        raise ZeroDivisionError


class Forgetful(Adding):
    """Returns None from `on_send`."""

    def on_send(self, record: Record) -> Record:
        return None  # type: ignore[return-value]


def test_chain_hands_each_interceptor_the_record_of_the_one_before() -> None:
    log: list[str] = []
    chain = InterceptorChain([Adding("a", log), Adding("b", log)])
    assert chain.on_send(RECORD).topic == "tab"
    assert log == ["a send t", "b send ta"]


@pytest.mark.parametrize(
    ("cls", "reason"),
    [(Failing, "ZeroDivisionError"), (Forgetful, "NoneType instead of a ProducerRecord")],
)
def test_failing_interceptor_is_skipped_and_logged(
    cls: type[Adding], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    chain = InterceptorChain([Adding("a", log), cls("x", log), Adding("b", log)])
    with caplog.at_level(logging.WARNING):
        assert chain.on_send(RECORD).topic == "tab"
    assert caplog.messages == [f"interceptor {cls.__name__} failed in on_send"]
    assert reason in caplog.text
    assert "secret value" not in caplog.text


def test_every_interceptor_hears_of_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    chain = InterceptorChain([Failing("x", log), Adding("a", log), Adding("b", log)])
    chain.on_acknowledgement(RecordMetadata("t", 0, 5, 7), None)
    chain.on_acknowledgement(None, ProducerClosed("closed"))
    assert log == [
        "a ack True False",
        "b ack True False",
        "a ack False True",
        "b ack False True",
    ]
    assert len(caplog.messages) == 2


def test_method_without_a_readable_signature_gets_no_headers() -> None:
    class Opaque(Adding):
        class Method:
            __signature__ = "none"

            def __init__(self, log: list[str]) -> None:
                self.log = log

            def __call__(self, *arguments: object, **named: object) -> None:
                self.log.append(f"{len(arguments)} {sorted(named)}")

        def __init__(self, name: str, log: list[str]) -> None:
            super().__init__(name, log)
            self.on_acknowledgement = self.Method(log)  # type: ignore[method-assign]

    log: list[str] = []
    chain = InterceptorChain([Opaque("a", log)])
    chain.on_acknowledgement(None, ProducerClosed("closed"), headers=(("k", b"v"),))
    assert log == ["2 []"]


def test_empty_chain_is_false_and_changes_nothing() -> None:
    assert not InterceptorChain()
    assert InterceptorChain([Adding("a", [])])
    assert InterceptorChain().on_send(RECORD) is RECORD
