"""The coroutine that fetches metadata (the metadata tests of Java NetworkClientTest)."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from aiokprod._engine.metadata.cache import Metadata
from aiokprod._engine.metadata.updater import MetadataUpdater
from aiokprod._engine.sender.unresponsive_brokers import OVERDUE_AFTER_S
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataResponse
from aiokprod.errors import (
    AuthenticationError,
    BrokerError,
    DialError,
    Disconnected,
    KafkaError,
    MetadataTimeout,
    RequestTimedOut,
    UnsupportedVersion,
)
from aiokprod.testing.virtual import run
from tests.current import current
from tests.engine.metadata.metadata_fakes import FakeClient, Sent, answer, config, partition, topic

NOW = 500.0
TIMEOUT = 30.0
"""Default of request_timeout_ms, in s."""
BOOTSTRAP = [-2, -1]


@dataclass
class UpdaterHarness:
    """Cache, updater and client with a manual clock."""

    settings: dict[str, Any] = field(default_factory=dict)
    client: FakeClient = field(default_factory=FakeClient)
    now: float = NOW
    sent_signals: int = 0

    def __post_init__(self) -> None:
        made = config(**self.settings)
        self.metadata = Metadata(made, random.Random(1))
        self.updater = MetadataUpdater(
            self.metadata, self.client, made, lambda: self.now, on_request_sent=self.signal
        )

    def signal(self) -> None:
        self.sent_signals += 1

    def step(self, seconds: float = 0.0) -> float:
        """Advance the clock and run the updater once. Return the seconds until the next run is
        due."""
        self.now += seconds
        return self.updater.run_once(self.now) - self.now

    def finish(self, response: MetadataResponse | KafkaError) -> float:
        """Complete the open request."""
        sent = self.client.sent[-1]
        if isinstance(response, KafkaError):
            sent.fail(response)
        else:
            sent.succeed(response)
        return self.step()

    @property
    def asking(self) -> bool:
        """True if a request is in flight."""
        return self.client.open > 0

    def up(self, brokers: Sequence[int] = (1, 2)) -> None:
        """Update the metadata with the brokers and with topic t with two partitions."""
        self.metadata.mark_used("t", self.now)
        self.step()
        self.finish(answer(topic("t", 2), brokers=brokers))


def make(client: FakeClient | None = None, **settings: Any) -> UpdaterHarness:
    return UpdaterHarness(settings, client or FakeClient())


# -- requests -----------------------------------------------------------------------------------


def test_first_pass_asks_a_bootstrap_node_for_the_brokers() -> None:
    harness = make()
    assert harness.client.node_sets == [BOOTSTRAP]
    assert harness.step() == OVERDUE_AFTER_S
    (sent,) = harness.client.sent
    assert sent.node_id in BOOTSTRAP
    assert sent.request.topics == ()  # empty, not null: null would be all topics of the cluster
    assert sent.request.allow_auto_topic_creation
    assert sent.timeout == 30.0
    assert harness.sent_signals == 1


def test_request_lists_exactly_the_topics_in_use() -> None:
    harness = make(allow_auto_create_topics=False, request_timeout_ms=1_500)
    harness.metadata.mark_used("a", harness.now)
    harness.metadata.mark_used("b", harness.now)
    harness.step()
    (sent,) = harness.client.sent
    assert sent.topics == ["a", "b"]
    assert not sent.request.allow_auto_topic_creation
    assert sent.timeout == 1.5


def test_answer_replaces_the_nodes_of_the_client_and_ends_the_need() -> None:
    harness = make()
    harness.step()
    until = harness.finish(answer())
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2]]
    assert until == 300.0
    harness.metadata.request_update()
    harness.step(1)
    harness.finish(answer())
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2]]


def test_at_most_one_request_is_under_way() -> None:
    harness = make()
    for _ in range(3):
        harness.metadata.request_update()
        harness.metadata.mark_used("t", harness.now)
        assert 0 < harness.step(0.2) <= OVERDUE_AFTER_S
    assert len(harness.client.sent) == 1


def asked_twice(brokers: Sequence[int] = (1, 2)) -> tuple[UpdaterHarness, Sent, Sent]:
    harness = make()
    harness.up(brokers)
    harness.metadata.request_update()
    harness.step(5)
    assert harness.step(OVERDUE_AFTER_S - 0.01) == pytest.approx(0.01)
    assert len(harness.client.sent) == 2, "with the one of `up`"
    assert harness.step(0.01) == TIMEOUT
    _, first, second = harness.client.sent
    assert (first.topics, first.node_id) != (second.topics, second.node_id)
    assert first.topics == second.topics
    return harness, first, second


def test_silent_node_is_asked_together_with_another_one() -> None:
    harness, first, second = asked_twice()
    harness.step(10)
    assert len(harness.client.sent) == 3, "and with no third one"
    assert first.timeout == TIMEOUT
    generation = harness.metadata.snapshot.generation
    second.succeed(answer(topic("t", 3)))
    harness.step()
    assert harness.metadata.snapshot.generation > generation
    generation = harness.metadata.snapshot.generation
    first.succeed(answer(topic("t", 2)))
    harness.step()
    assert harness.metadata.snapshot.generation == generation, "a late answer tells nothing new"
    assert harness.metadata.last_error is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_request_has_failed_once_both_nodes_have(order: tuple[int, int]) -> None:
    harness, *both = asked_twice()
    both[order[0]].fail(Disconnected("gone"))
    harness.step()
    assert harness.metadata.last_error is None
    both[order[1]].fail(RequestTimedOut("no answer"))
    harness.step()
    assert isinstance(current(harness.metadata.last_error), RequestTimedOut)
    assert harness.metadata.next_update_at(harness.now) < harness.now + 1


def test_third_node_is_asked_once_one_of_two_has_failed() -> None:
    harness, first, second = asked_twice((1, 2, 3))
    harness.client.down[first.node_id] = math.inf
    first.fail(Disconnected("gone"))
    assert harness.step() == TIMEOUT
    third = harness.client.sent[-1]
    assert {first.node_id, second.node_id, third.node_id} == {1, 2, 3}
    harness.client.down[second.node_id] = math.inf
    second.fail(Disconnected("gone"))
    for _ in range(3):
        assert harness.step(OVERDUE_AFTER_S) == pytest.approx(OVERDUE_AFTER_S), (
            "nobody else is left to ask"
        )
    assert len(harness.client.sent) == 4, "and nobody is asked again"
    third.succeed(answer(topic("t", 3), brokers=(1, 2, 3)))
    harness.step()
    assert harness.metadata.last_error is None
    assert harness.metadata.lookup("t") is not None


def test_third_node_is_asked_when_two_have_been_silent_for_the_request_timeout() -> None:
    """Throttling extends the deadlines of their requests, so their connections are still open
    then."""
    harness, first, second = asked_twice((1, 2, 3))
    harness.step(TIMEOUT - 0.01)
    assert len(harness.client.sent) == 3
    harness.step(0.01)
    third = harness.client.sent[-1]
    assert {first.node_id, second.node_id, third.node_id} == {1, 2, 3}
    third.succeed(answer(topic("t", 3), brokers=(1, 2, 3)))
    harness.step()
    assert harness.metadata.last_error is None


def test_request_that_nobody_answers_is_given_up_for_another_bootstrap_KIP_1102() -> None:
    harness, *_ = asked_twice()
    for _ in range(14):
        harness.step(20)
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2]]
    for _ in range(3):
        harness.step(20)
    assert harness.client.node_sets[-1] == BOOTSTRAP
    assert harness.client.sent[-1].node_id in BOOTSTRAP
    harness.finish(answer(topic("t", 2)))
    assert harness.metadata.last_error is None


def test_trigger_of_zero_leaves_a_request_its_time() -> None:
    harness = make(metadata_recovery_rebootstrap_trigger_ms=0)
    harness.client.down[-2] = math.inf
    harness.step()
    harness.step(TIMEOUT - 1)
    harness.finish(answer())
    assert harness.client.resets == 0
    assert not harness.metadata.only_bootstrap_nodes


def test_silent_node_without_another_one_is_waited_for() -> None:
    harness = make(FakeClient(down={-2: math.inf}))
    for _ in range(3):
        assert harness.step(OVERDUE_AFTER_S) == OVERDUE_AFTER_S
    assert len(harness.client.sent) == 1
    harness.finish(answer())
    assert harness.metadata.last_error is None


def test_slow_node_is_asked_while_another_one_is_being_connected() -> None:
    harness = make(FakeClient(down={-2: NOW}, slow={-1}))
    assert harness.step() == OVERDUE_AFTER_S
    assert harness.client.dialled == [-2]
    assert [sent.node_id for sent in harness.client.sent] == [-1]
    harness.step(0.3)
    assert len(harness.client.sent) == 1
    # The first connection succeeds: that node gets the request as well, and no third node does.
    harness.client.dialling.clear()
    assert harness.updater.awaits_network
    harness.updater.wake()
    assert harness.updater._wake.is_set()
    assert harness.step() == pytest.approx(TIMEOUT)
    assert [sent.node_id for sent in harness.client.sent] == [-1, -2]
    harness.finish(answer())
    assert harness.metadata.last_error is None


def test_slow_node_answers_although_no_other_can_be_connected() -> None:
    harness = make(FakeClient(down={-2: NOW}, slow={-1}))
    for _ in range(3):
        assert harness.step(OVERDUE_AFTER_S) == OVERDUE_AFTER_S
    assert [sent.node_id for sent in harness.client.sent] == [-1]
    assert not harness.updater._metadata.update_due(harness.now), "data may be sent meanwhile"
    harness.finish(answer())
    assert harness.metadata.last_error is None


def test_free_slot_of_another_node_is_claimed_for_an_overdue_request() -> None:
    harness = make(FakeClient(busy={-2}))
    harness.step()
    assert harness.metadata.claimed == frozenset()
    harness.step(OVERDUE_AFTER_S)
    assert harness.metadata.claimed == {-2}, "data must leave it the next slot"
    signals = harness.sent_signals
    harness.client.busy.clear()
    assert harness.step() == TIMEOUT
    assert [sent.node_id for sent in harness.client.sent] == [-1, -2]
    assert harness.metadata.claimed == frozenset()
    assert harness.sent_signals == signals + 1, "data may be sent again"


def test_claimed_slot_is_released_by_an_answer() -> None:
    harness = make(FakeClient(busy={-2}))
    harness.step()
    harness.step(OVERDUE_AFTER_S)
    signals = harness.sent_signals
    harness.finish(answer())
    assert harness.metadata.claimed == frozenset()
    assert harness.sent_signals == signals + 1


def test_new_topic_is_asked_for_at_once_on_its_own() -> None:
    harness = make()
    harness.up()
    harness.metadata.mark_used("u", harness.now)
    harness.step()
    assert harness.client.sent[-1].topics == ["u"]
    harness.finish(answer(topic("u", 1)))
    assert harness.metadata.lookup("t") is not None
    assert harness.metadata.lookup("u") is not None


@pytest.mark.parametrize(("version", "epoch"), [(8, -1), (9, 4), (13, 5)])
def test_leader_epochs_count_from_version_9_on(version: int, epoch: int) -> None:
    harness = make(FakeClient(version=version))
    harness.metadata.mark_used("t", harness.now)
    harness.step()
    harness.finish(answer(topic("t", [partition(0, 1, epoch if epoch > 0 else 5)])))
    assert harness.metadata.snapshot.leader_epoch_of(("t", 0)) == epoch  # type: ignore[arg-type]


# -- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        Disconnected("gone"),
        RequestTimedOut("late"),
        answer(brokers=[]),
        answer(error=-1),
        answer(error=31),
        answer(error=4711),
    ],
    ids=["disconnect", "timeout", "no-brokers-F54", "server", "cluster-auth", "unknown"],
)
def test_failed_request_is_repeated_after_a_growing_backoff(
    failure: MetadataResponse | KafkaError,
) -> None:
    harness = make()
    harness.step()
    waits = []
    for attempt in range(7):
        assert len(harness.client.sent) == attempt + 1
        waits.append(harness.finish(failure))
        assert harness.client.node_sets == [BOOTSTRAP]
        harness.step(waits[-1])
    assert waits[0] <= 0.12
    assert waits[1] >= 0.16
    assert waits[-1] == pytest.approx(1.0)
    assert harness.metadata.last_error is not None
    if not isinstance(failure, KafkaError) and not failure.error_code:
        assert isinstance(harness.metadata.last_error, BrokerError)
        assert "empty list of brokers" in str(harness.metadata.last_error)
    harness.finish(answer())
    assert harness.metadata.last_error is None


@pytest.mark.parametrize(
    "response",
    [
        answer(topic("t", 0, error=3)),
        answer(topic("t", 0, error=29)),
        answer(topic("t", 0)),
        answer(),
        answer(topic("t", [partition(0, -1, 5, error=5)])),
        answer(topic("t", [partition(0, 9, 5)])),
    ],
    ids=["unknown-F51", "unauthorized", "zero-partitions", "omitted", "no-leader", "ghost-leader"],
)
def test_no_answer_makes_a_storm_of_requests(response: MetadataResponse) -> None:
    harness = make(retry_backoff_ms=1, retry_backoff_max_ms=1)
    harness.up()
    start, first = harness.now, len(harness.client.sent)
    while harness.now < start + 5:
        harness.metadata.mark_used("t", harness.now)
        harness.metadata.request_update()
        harness.step(0.001)
        if harness.asking:
            harness.finish(response)
    assert (len(harness.client.sent) - first) / 5 <= 20


def test_alternating_answers_make_no_storm_either() -> None:
    harness = make(retry_backoff_ms=0)
    harness.up()
    start, first = harness.now, len(harness.client.sent)
    while harness.now < start + 5:
        harness.metadata.request_update()
        harness.step(0.001)
        if harness.asking:
            brokers = [1, 2] if len(harness.client.sent) % 2 else [1, 2, 3]
            harness.finish(answer(topic("t", 2), brokers=brokers))
    assert (len(harness.client.sent) - first) / 5 <= 20


@pytest.mark.parametrize("error", [AuthenticationError("denied"), UnsupportedVersion("too old")])
@pytest.mark.parametrize("via", ["response", "connection"])
def test_error_that_waiting_does_not_heal_reaches_the_waiters(error: KafkaError, via: str) -> None:
    async def main() -> None:
        harness = make()
        harness.now = asyncio.get_running_loop().time()
        waiter = asyncio.create_task(
            harness.metadata.wait_for_topic("t", deadline=harness.now + 60)
        )
        await asyncio.sleep(0)
        if via == "connection":
            harness.client.down = {-1: math.inf, -2: math.inf}
        harness.step()
        if via == "response":
            assert 0 < harness.finish(error) < 0.2
        else:
            harness.updater.on_disconnect(-1, error)
        with pytest.raises(type(error)) as caught:
            await waiter
        assert caught.value.__cause__ is error

    run(main)


@pytest.mark.parametrize("asking", [True, False])
def test_refusal_by_one_broker_leaves_waiters_to_the_others(asking: bool) -> None:
    async def main() -> None:
        harness = make()
        harness.up()
        harness.now += 5
        if asking:
            harness.metadata.request_update()
            harness.step()
            assert harness.asking
        deadline = asyncio.get_running_loop().time() + 60
        waiter = asyncio.create_task(harness.metadata.wait_for_topic("new", deadline=deadline))
        await asyncio.sleep(0)
        other = harness.client.sent[-1].node_id
        refusing = 3 - other
        harness.client.down[refusing] = math.inf
        harness.updater.on_disconnect(refusing, AuthenticationError("denied"))
        for _ in range(3):
            await asyncio.sleep(0)
            harness.step(1)
            if harness.asking:
                harness.finish(answer(topic("t", 2), topic("new", 1)))
        assert (await waiter).partition_count("new") == 1

    run(main)


def test_disconnect_asks_for_an_update() -> None:
    harness = make()
    harness.up()
    assert harness.step(5) > 1
    harness.updater.on_disconnect(1, Disconnected("gone"))
    assert harness.step() == OVERDUE_AFTER_S
    assert len(harness.client.sent) == 2
    assert isinstance(harness.metadata.last_error, Disconnected)


def test_connect_failure_with_nobody_left_counts_as_failed_update() -> None:
    client = FakeClient(down={-1: math.inf, -2: math.inf})
    harness = make(client)
    harness.step()
    for _ in range(4):
        harness.updater.on_disconnect(-1, DialError("refused"))
        harness.now += 2
    harness.updater.on_disconnect(-1, DialError("refused"))
    assert 0.8 <= harness.metadata.next_update_at(harness.now) - harness.now <= 1.0


def test_connect_failure_with_others_left_tries_them_at_once() -> None:
    client = FakeClient(down={-1: NOW, -2: NOW})
    harness = make(client)
    harness.step()
    assert client.dialled == [-1]
    client.dialling.clear()
    client.down[-1] = NOW + 0.05
    harness.updater.on_disconnect(-1, DialError("refused"))
    harness.step()
    assert client.dialled == [-1, -2]


# -- choosing a node ----------------------------------------------------------------------------


def test_while_a_dial_is_pending_no_other_is_started() -> None:
    client = FakeClient(down={-1: NOW, -2: NOW})
    harness = make(client)
    for _ in range(3):
        harness.step(0.01)
    assert client.dialled == [-1]
    assert not client.sent
    client.dialling.clear()
    harness.step()
    assert client.sent[-1].node_id == -1


def test_pending_dial_is_looked_at_every_second_although_others_could_be_dialled() -> None:
    client = FakeClient(down={-1: NOW, -2: NOW})
    harness = make(client, metadata_recovery_strategy="none")
    assert harness.step() == 1.0
    assert harness.step(0.4) == 1.0
    assert client.dialled == [-1], "which one is as good is for the client to say"


def test_pass_without_a_usable_node_waits_until_the_backoff_of_one_is_over() -> None:
    client = FakeClient(down={-1: NOW + 0.7, -2: NOW + 0.3})
    harness = make(client)
    assert harness.step() == pytest.approx(0.3)
    harness.step(0.3)
    assert client.dialled == [-2]


def test_pass_without_a_usable_node_never_spins() -> None:
    client = FakeClient(busy={-1, -2}, down={})
    harness = make(client, metadata_recovery_strategy="none")
    assert harness.step() == math.inf
    client.retry_at = lambda node_id, now: now  # type: ignore[method-assign]
    assert harness.step() == pytest.approx(0.05)


# -- rebootstrap --------------------------------------------------------------------------------


def lose(harness: UpdaterHarness, node_id: int, until: float = math.inf) -> None:
    """Break the connection to a node, or fail an attempt to connect."""
    harness.client.dialling.discard(node_id)
    harness.client.down[node_id] = until
    harness.updater.on_disconnect(node_id, DialError("refused"))


@pytest.mark.parametrize("backoff", [math.inf, 0.0], ids=["in-backoff", "slow-to-refuse"])
def test_all_brokers_lost_leads_back_to_the_bootstrap_addresses_KIP_899(backoff: float) -> None:
    harness = make()
    harness.up()
    harness.now += 1
    lose(harness, 1, backoff)
    harness.step()
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2]]
    harness.client.sent[-1].fail(Disconnected("gone"))
    lose(harness, 2, backoff)
    harness.step()
    harness.step(0.2)
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2], BOOTSTRAP]
    assert harness.client.sent[-1].node_id in BOOTSTRAP
    assert harness.client.resets == 0
    assert harness.metadata.lookup("t", 1) is not None
    harness.finish(answer(topic("t", 2), brokers=[3]))
    assert harness.client.node_sets[-1] == [3]


def test_connection_lost_once_is_no_reason_to_bootstrap_again() -> None:
    harness = make()
    harness.up()
    harness.now += 1
    harness.client.dialling = {1, 2}
    for node_id in (1, 2):
        harness.updater.on_disconnect(node_id, Disconnected("gone"))
    harness.step(1)
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2]]
    for node_id in (1, 2):
        harness.updater.on_disconnect(node_id, Disconnected("gone again"))
    harness.step(1)
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2], BOOTSTRAP]


def test_broker_lost_before_the_last_answer_does_not_count() -> None:
    harness = make()
    harness.up()
    harness.now += 1
    lose(harness, 1)
    harness.step()
    harness.finish(answer(topic("t", 2)))
    lose(harness, 2)
    harness.step(1)
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2]]


def test_busy_broker_is_no_reason_to_bootstrap_again() -> None:
    harness = make()
    harness.up()
    harness.client.busy = {2}
    for node_id in (1, 2):
        harness.updater.on_disconnect(node_id, Disconnected("gone"))
    harness.client.down[1] = math.inf
    harness.step(1)
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2]]


def test_strategy_none_never_bootstraps_again() -> None:
    harness = make(metadata_recovery_strategy="none")
    harness.up()
    for node_id in (1, 2):
        lose(harness, node_id)
    for _ in range(5):
        assert harness.step(200) == math.inf
    harness.client.down = {}
    harness.step()
    harness.finish(answer(error=129))
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2]]


def test_unreachable_bootstrap_addresses_are_not_set_again_and_again() -> None:
    client = FakeClient(down={-1: math.inf, -2: math.inf})
    harness = make(client)
    for _ in range(20):
        lose(harness, -1)
        lose(harness, -2)
        harness.step(1)
    assert client.node_sets == [BOOTSTRAP]
    assert client.resets == 0


def test_trigger_bootstraps_again_after_long_enough_without_answer_KIP_1102() -> None:
    harness = make(metadata_recovery_rebootstrap_trigger_ms=10_000)
    harness.up()
    harness.client.busy = {1, 2}
    harness.metadata.request_update()
    assert harness.step(1) == pytest.approx(10.0)
    harness.step(9)
    assert harness.client.resets == 0
    harness.step(1.1)
    assert harness.client.resets == 1
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2], BOOTSTRAP]
    assert harness.client.sent[-1].node_id in BOOTSTRAP


def test_trigger_of_zero_does_not_bootstrap_in_quick_succession() -> None:
    client = FakeClient(busy={-1, -2})
    harness = make(client, metadata_recovery_rebootstrap_trigger_ms=0)
    for _ in range(500):
        harness.step(0.01)
    assert client.resets <= 5


def test_broker_can_ask_to_bootstrap_again() -> None:
    harness = make()
    harness.up()
    harness.metadata.request_update()
    harness.step(1)
    wait = harness.finish(answer(error=129))
    assert harness.client.resets == 1
    assert harness.client.node_sets == [BOOTSTRAP, [1, 2], BOOTSTRAP]
    assert 0.05 <= wait <= 0.12
    harness.step(wait)
    assert harness.client.sent[-1].node_id in BOOTSTRAP
    harness.finish(answer(topic("t", 2)))
    assert harness.metadata.lookup("t") is not None


def test_brokers_that_always_ask_to_bootstrap_again_make_no_storm() -> None:
    harness = make(retry_backoff_ms=1)
    harness.step()
    start = harness.now
    while harness.now < start + 5:
        wait = harness.finish(answer(error=129))
        harness.step(wait)
    assert len(harness.client.sent) / 5 <= 20


# -- the coroutine ------------------------------------------------------------------------------

Scenario = Callable[[UpdaterHarness, "asyncio.Task[None]"], Awaitable[None]]


def running(scenario: Scenario, client: FakeClient | None = None, **settings: Any) -> None:
    """Run a scenario with a running updater in virtual time."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        fake = client or FakeClient()
        made = config(**settings)
        harness = UpdaterHarness(settings, fake)
        harness.metadata = Metadata(made, random.Random(1))
        harness.updater = MetadataUpdater(harness.metadata, fake, made, loop.time)
        task = asyncio.create_task(harness.updater.run())
        try:
            await asyncio.sleep(0)
            await scenario(harness, task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main)


def test_run_fetches_for_a_waiter() -> None:
    async def scenario(harness: UpdaterHarness, task: asyncio.Task[None]) -> None:
        now = asyncio.get_running_loop().time()
        harness.client.sent[-1].succeed(answer())
        waiter = asyncio.create_task(harness.metadata.wait_for_topic("t", deadline=now + 60))
        for _ in range(5):
            await asyncio.sleep(0)
        assert harness.client.sent[-1].topics == ["t"]
        harness.client.sent[-1].succeed(answer(topic("t", 2)))
        assert (await waiter).partition_count("t") == 2
        assert asyncio.get_running_loop().time() == now

    running(scenario)


def test_run_wakes_although_an_earlier_wakeup_was_interrupted() -> None:
    """A signal handler that raises can leave an asyncio.Event set without waking its waiters."""

    async def scenario(harness: UpdaterHarness, task: asyncio.Task[None]) -> None:
        now = asyncio.get_running_loop().time()
        harness.client.sent[-1].succeed(answer())
        for _ in range(5):
            await asyncio.sleep(0)
        wake: Any = harness.updater._wake
        wake._value = True
        waiter = asyncio.create_task(harness.metadata.wait_for_topic("t", deadline=now + 60))
        for _ in range(5):
            await asyncio.sleep(0)
        assert harness.client.sent[-1].topics == ["t"]
        harness.client.sent[-1].succeed(answer(topic("t", 2)))
        assert (await waiter).partition_count("t") == 2

    running(scenario)


def test_run_refreshes_by_age_and_sleeps_in_between_P12() -> None:
    async def scenario(harness: UpdaterHarness, task: asyncio.Task[None]) -> None:
        passes = 0
        original = harness.updater.run_once

        def counted(now: float) -> float:
            nonlocal passes
            passes += 1
            return original(now)

        harness.updater.run_once = counted  # type: ignore[method-assign]
        for _ in range(10):
            harness.client.sent[-1].succeed(answer())
            await asyncio.sleep(300.001)
        assert len(harness.client.sent) == 11
        assert passes <= 22

    running(scenario)


def test_run_wakes_when_a_connection_is_ready() -> None:
    async def scenario(harness: UpdaterHarness, task: asyncio.Task[None]) -> None:
        await asyncio.sleep(3)
        assert not harness.client.sent
        harness.client.dialling.clear()
        harness.updater.wake()
        await asyncio.sleep(0)
        assert len(harness.client.sent) == 1

    running(scenario, FakeClient(dialling={-1, -2}))


def test_unreachable_bootstrap_lets_waiters_time_out_with_the_network_error() -> None:
    async def scenario(harness: UpdaterHarness, task: asyncio.Task[None]) -> None:
        refused = DialError("connection refused")
        harness.updater.on_disconnect(-1, refused)
        now = asyncio.get_running_loop().time()
        with pytest.raises(MetadataTimeout, match="boot-a:9092, boot-b:9093") as caught:
            await harness.metadata.wait_for_topic("t", deadline=now + 2)
        assert caught.value.__cause__ is refused
        assert asyncio.get_running_loop().time() == now + 2
        assert not task.done()

    running(scenario, FakeClient(down={-1: math.inf, -2: math.inf}))


def test_unexpected_failure_ends_the_coroutine_with_its_cause() -> None:
    async def scenario(harness: UpdaterHarness, task: asyncio.Task[None]) -> None:
        def broken(snapshot: object) -> None:
            raise ZeroDivisionError("a bug")

        harness.metadata.on_change(broken)
        harness.client.sent[-1].succeed(answer())
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await task

    running(scenario)


def test_answer_after_the_end_is_ignored() -> None:
    async def scenario(harness: UpdaterHarness, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        harness.metadata.close()
        harness.client.sent[-1].succeed(answer())
        assert harness.metadata.snapshot.generation == 1

    running(scenario)


def test_request_message_is_the_one_of_the_protocol() -> None:
    assert MetadataRequest.api_key == 3
