"""The requests of a `ClusterClient`, and connection failures of its brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod._client.cluster_client import (
    ClusterClient,
    EndTransaction,
    describe_topic,
    group_offsets,
    list_offsets,
)
from aiokprod._client.cluster_client.broker_access import BrokerAccess
from aiokprod.errors import (
    AuthenticationError,
    Code,
    DialError,
    Disconnected,
    KafkaTimeout,
    error_code,
)

REFUSAL = AuthenticationError("wrong password")


class FakeClient:
    """A client that builds each request in one version and returns the given bodies or raises the
    given errors."""

    def __init__(self, version: int, *answers: Any) -> None:
        self._version = version
        self._answers = list(answers)
        self.requests: list[Any] = []

    async def ask(self, where: object, request: Any, deadline: float) -> Any:
        self.requests.append(request(self._version))
        return SimpleNamespace(body=self._answers.pop(0))

    async def coordinate(
        self, kind: object, key: str, request: Any, deadline: float, codes: Callable[[Any], int]
    ) -> Any:
        while True:
            self.requests.append(request(self._version))
            answer = self._answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if not error_code(codes(answer)).retriable:
                return answer


def client(version: int, *answers: Any) -> Any:
    return FakeClient(version, *answers)


def code(number: int, **fields: Any) -> Any:
    return SimpleNamespace(error_code=int(number), **fields)


# -- transactions -------------------------------------------------------------------------------


def end(*answers: Any) -> tuple[EndTransaction, int | None]:
    """Send an EndTxn request that gets these responses. Return the call and its final error code,
    or None for an exception."""
    call = EndTransaction("id", 5, 1, commit=True, second_protocol=True)
    try:
        return call, asyncio.run(call.send(client(5, *answers), 60.0))
    except KafkaTimeout:
        return call, None


def test_end_of_a_transaction_is_certain_after_a_definite_answer() -> None:
    call, result = end(code(Code.NONE))
    assert (call.in_doubt, result) == (False, Code.NONE)


def test_end_that_is_refused_at_once_is_not_in_doubt() -> None:
    call, result = end(code(Code.INVALID_TXN_STATE))
    assert (call.in_doubt, result) == (False, Code.INVALID_TXN_STATE)


def test_end_that_may_have_been_executed_before_is_in_doubt_after_a_refusal() -> None:
    call, result = end(code(Code.NOT_COORDINATOR), code(Code.INVALID_TXN_STATE))
    assert (call.in_doubt, result) == (True, Code.INVALID_TXN_STATE)


def test_end_without_an_answer_is_in_doubt() -> None:
    call, result = end(KafkaTimeout("no answer"))
    assert (call.in_doubt, result) == (True, None)


def test_end_that_was_never_sent_is_not_in_doubt() -> None:
    assert not EndTransaction("id", 5, 1, commit=True, second_protocol=False).in_doubt


# -- groups -------------------------------------------------------------------------------------


def topics(*errors: int) -> list[Any]:
    parts = [
        code(error, partition_index=n, committed_offset=n + 3, metadata="m")
        for n, error in enumerate(errors)
    ]
    return [SimpleNamespace(name="t", partitions=parts)]


@pytest.mark.parametrize("version", [7, 8])
def test_group_offsets_are_read_from_both_forms_of_the_response(version: int) -> None:
    group = code(Code.NONE, topics=topics(0, 0))
    body = SimpleNamespace(groups=[group]) if version >= 8 else code(
        Code.NONE, topics=topics(0, 0), groups=[])  # fmt: skip
    fake = client(version, body)
    result, offsets = asyncio.run(group_offsets(fake, "g", 60.0, stable=True))
    assert result == Code.NONE
    assert offsets == [("t", 0, 3, "m"), ("t", 1, 4, "m")]
    (request,) = fake.requests
    assert request.require_stable is True
    assert [one.group_id for one in request.groups or ()] == (["g"] if version >= 8 else [])


def test_group_offsets_report_every_code_and_return_that_of_a_partition() -> None:
    seen: list[int] = []
    unstable = code(Code.UNSTABLE_OFFSET_COMMIT, topics=[], groups=[])
    refused = code(Code.NONE, topics=topics(0, Code.TOPIC_AUTHORIZATION_FAILED), groups=[])
    found = group_offsets(client(7, unstable, refused), "g", 60.0, stable=True, on_code=seen.append)
    assert asyncio.run(found)[0] == Code.TOPIC_AUTHORIZATION_FAILED
    assert seen == [Code.UNSTABLE_OFFSET_COMMIT, Code.TOPIC_AUTHORIZATION_FAILED]


# -- topics and partitions ----------------------------------------------------------------------


@pytest.mark.parametrize(("version", "isolation"), [(1, 0), (2, 1)])
def test_list_offsets_ask_for_the_last_stable_offset_if_the_version_can(
    version: int, isolation: int
) -> None:
    part = code(Code.NONE, offset=17, partition_index=3)
    topic = SimpleNamespace(name="t", partitions=[part])
    fake = client(version, SimpleNamespace(topics=[topic]))
    wanted = [("t", 3), ("u", 0), ("t", 4)]
    found = list_offsets(fake, 1, wanted, 60.0, timestamp=-1, committed=True)
    assert asyncio.run(found) == {("t", 3): (Code.NONE, 17)}, "what the response has"
    (request,) = fake.requests
    assert request.isolation_level == isolation
    asked = [
        (one.name, [part.partition_index for part in one.partitions]) for one in request.topics
    ]
    assert asked == [("t", [3, 4]), ("u", [0])]


def test_describe_topic_asks_for_permissions_and_creation() -> None:
    found = code(Code.NONE, topic_authorized_operations=16)
    fake = client(8, SimpleNamespace(topics=[found]))
    assert asyncio.run(describe_topic(fake, "t", 60.0, allow_auto_creation=False)) == (0, 16)
    (request,) = fake.requests
    assert request.include_topic_authorized_operations is True
    assert request.allow_auto_topic_creation is False


def test_client_has_the_methods_that_the_requests_use() -> None:
    for name in ("ask", "coordinate", "coordinate_all", "nodes"):
        assert asyncio.iscoroutinefunction(getattr(ClusterClient, name))


# -- access -------------------------------------------------------------------------------------


def test_refusal_counts_after_the_patience_and_only_if_the_call_saw_it() -> None:
    access = BrokerAccess(patience=10.0)
    access.lost(1, REFUSAL, 0.0)
    assert access.of(1, 0.0, 9.0, last_word=False) is None
    assert access.of(1, 0.0, 10.0, last_word=False) is REFUSAL
    assert access.of(1, 5.0, 10.0, last_word=False) is None  # the rejection preceded the call
    assert access.of(1, 5.0, 10.0, last_word=True) is REFUSAL
    access.connected(1)
    assert access.of(1, 0.0, 99.0, last_word=True) is None


def test_all_refuse_if_the_others_are_unreachable() -> None:
    access = BrokerAccess(patience=0.0)
    access.lost(1, REFUSAL, 1.0)
    assert access.of_all([1, 2], 0.0, 2.0, last_word=False) is None  # broker 2 was not tried yet
    access.lost(2, DialError("refused"), 1.0)
    assert access.of_all([1, 2], 0.0, 2.0, last_word=False) is REFUSAL
    access.lost(2, Disconnected("it was connected"), 2.0)
    assert access.of_all([1, 2], 0.0, 2.0, last_word=False) is None
    assert access.of_all([1, 2], 0.0, 2.0, last_word=True) is REFUSAL
