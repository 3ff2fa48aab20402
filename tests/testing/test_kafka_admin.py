"""The responses that `FakeClusterAdmin` accepts as final."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from aiokprod.testing.kafka_admin import RETRY_FOR, AdminError, ClusterAdmin

UNKNOWN_TOPIC, NOT_LEADER, NOT_AUTHORIZED = 3, 6, 29


class Answering:
    """A stand-in for librdkafka's admin client, with a topic of one partition.

    Its responses are offsets, or errors that are not marked as retriable, as librdkafka returns
    them.
    """

    def __init__(self, *answers: KafkaException | int) -> None:
        self.answers = list(answers)

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={"t": SimpleNamespace(partitions={0: object()})})

    def list_offsets(self, wanted: Any, request_timeout: float) -> dict[Any, Future[Any]]:
        answer = self.answers.pop(0)
        future: Future[Any] = Future()
        if isinstance(answer, int):
            future.set_result(SimpleNamespace(offset=answer))
        else:
            future.set_exception(answer)
        return {partition: future for partition in wanted}


def refusal(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


def admin(*answers: KafkaException | int) -> ClusterAdmin:
    made = ClusterAdmin("127.0.0.1:9")
    made._client = Answering(*answers)
    return made


@pytest.mark.parametrize("code", [UNKNOWN_TOPIC, NOT_LEADER])
def test_end_offsets_are_asked_for_again_while_leaders_move(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(time, "sleep", paused.append)
    assert admin(refusal(code), refusal(code), 17).end_offsets("t") == {0: 17}
    assert len(paused) == 2


def test_end_offsets_without_a_leader_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert admin(-1001, -1001, 17).end_offsets("t") == {0: 17}


def test_end_offsets_without_a_leader_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", pause)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with pytest.raises(AdminError, match=r"no end offset of t, partitions \[0\]: no leader"):
        admin(*[-1001] * 1_000).end_offsets("t")
    assert now[0] == pytest.approx(RETRY_FOR, abs=0.5)


def test_end_offsets_refused_for_good_are_an_error_at_once() -> None:
    with pytest.raises(AdminError):
        admin(refusal(NOT_AUTHORIZED), 17).end_offsets("t")
