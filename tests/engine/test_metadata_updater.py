"""The coroutine that fetches (Java NetworkClientTest, as far as it is about metadata)."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from aiokprod.engine.metadata import Metadata
from aiokprod.engine.metadata_updater import MetadataUpdater
from aiokprod.engine.silence import PATIENCE_S
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
from aiokprod.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.engine.metadata_fakes import FakeClient, Sent, answer, config, partition, topic

NOW = 500.0
TIMEOUT = 30.0
"""request_timeout_ms by default, s."""
BOOTSTRAP = [-2, -1]


@dataclass
class World:
    """Cache, updater and client under a clock moved by hand."""

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
        """Let time pass, then one pass; seconds until the next one is due."""
        self.now += seconds
        return self.updater.run_once(self.now) - self.now

    def finish(self, response: MetadataResponse | KafkaError) -> float:
        """The open request ends."""
        sent = self.client.sent[-1]
        if isinstance(response, KafkaError):
            sent.fail(response)
        else:
            sent.succeed(response)
        return self.step()

    @property
    def asking(self) -> bool:
        """A request is under way."""
        return self.client.open > 0

    def up(self, brokers: Sequence[int] = (1, 2)) -> None:
        """The brokers and topic t with two partitions are known."""
        self.metadata.touch("t", self.now)
        self.step()
        self.finish(answer(topic("t", 2), brokers=brokers))


def make(client: FakeClient | None = None, **settings: Any) -> World:
    return World(settings, client or FakeClient())


# -- asking -------------------------------------------------------------------------------------


def test_first_pass_asks_a_bootstrap_node_for_the_brokers() -> None:
    world = make()
    assert world.client.node_sets == [BOOTSTRAP]
    assert world.step() == PATIENCE_S
    (sent,) = world.client.sent
    assert sent.node_id in BOOTSTRAP
    assert sent.request.topics == ()  # none, not null: null would be all topics of the cluster
    assert sent.request.allow_auto_topic_creation
    assert sent.timeout == 30.0
    assert world.sent_signals == 1


def test_request_lists_exactly_the_topics_in_use() -> None:
    world = make(allow_auto_create_topics=False, request_timeout_ms=1_500)
    world.metadata.touch("a", world.now)
    world.metadata.touch("b", world.now)
    world.step()
    (sent,) = world.client.sent
    assert sent.topics == ["a", "b"]
    assert not sent.request.allow_auto_topic_creation
    assert sent.timeout == 1.5


def test_answer_replaces_the_nodes_of_the_client_and_ends_the_need() -> None:
    world = make()
    world.step()
    until = world.finish(answer())
    assert world.client.node_sets == [BOOTSTRAP, [1, 2]]
    assert until == 300.0
    world.metadata.request_update()
    world.step(1)
    world.finish(answer())
    assert world.client.node_sets == [BOOTSTRAP, [1, 2]]


def test_at_most_one_request_is_under_way() -> None:
    world = make()
    for _ in range(3):
        world.metadata.request_update()
        world.metadata.touch("t", world.now)
        assert 0 < world.step(0.2) <= PATIENCE_S
    assert len(world.client.sent) == 1


def asked_twice(brokers: Sequence[int] = (1, 2)) -> tuple[World, Sent, Sent]:
    world = make()
    world.up(brokers)
    world.metadata.request_update()
    world.step(5)
    assert world.step(PATIENCE_S - 0.01) == pytest.approx(0.01)
    assert len(world.client.sent) == 2, "with the one of `up`"
    assert world.step(0.01) == TIMEOUT
    _, first, second = world.client.sent
    assert (first.topics, first.node_id) != (second.topics, second.node_id)
    assert first.topics == second.topics
    return world, first, second


def test_silent_node_is_asked_together_with_another_one() -> None:
    world, first, second = asked_twice()
    world.step(10)
    assert len(world.client.sent) == 3, "and with no third one"
    assert first.timeout == TIMEOUT
    generation = world.metadata.snapshot.generation
    second.succeed(answer(topic("t", 3)))
    world.step()
    assert world.metadata.snapshot.generation > generation
    generation = world.metadata.snapshot.generation
    first.succeed(answer(topic("t", 2)))
    world.step()
    assert world.metadata.snapshot.generation == generation, "a late answer tells nothing new"
    assert world.metadata.last_error is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_request_has_failed_once_both_nodes_have(order: tuple[int, int]) -> None:
    world, *both = asked_twice()
    both[order[0]].fail(Disconnected("gone"))
    world.step()
    assert world.metadata.last_error is None
    both[order[1]].fail(RequestTimedOut("no answer"))
    world.step()
    assert isinstance(world.metadata.last_error, RequestTimedOut)
    assert world.metadata.next_update_at(world.now) < world.now + 1


def test_third_node_is_asked_once_one_of_two_has_failed() -> None:
    world, first, second = asked_twice((1, 2, 3))
    world.client.down[first.node_id] = math.inf
    first.fail(Disconnected("gone"))
    assert world.step() == TIMEOUT
    third = world.client.sent[-1]
    assert {first.node_id, second.node_id, third.node_id} == {1, 2, 3}
    world.client.down[second.node_id] = math.inf
    second.fail(Disconnected("gone"))
    for _ in range(3):
        assert world.step(PATIENCE_S) == pytest.approx(PATIENCE_S), "nobody else is left to ask"
    assert len(world.client.sent) == 4, "and nobody is asked again"
    third.succeed(answer(topic("t", 3), brokers=(1, 2, 3)))
    world.step()
    assert world.metadata.last_error is None
    assert world.metadata.lookup("t") is not None


def test_third_node_is_asked_when_two_have_been_silent_for_the_request_timeout() -> None:
    """Their connections do not end by then: throttling moves the deadlines of requests."""
    world, first, second = asked_twice((1, 2, 3))
    world.step(TIMEOUT - 0.01)
    assert len(world.client.sent) == 3
    world.step(0.01)
    third = world.client.sent[-1]
    assert {first.node_id, second.node_id, third.node_id} == {1, 2, 3}
    third.succeed(answer(topic("t", 3), brokers=(1, 2, 3)))
    world.step()
    assert world.metadata.last_error is None


def test_request_that_nobody_answers_is_given_up_for_another_bootstrap_KIP_1102() -> None:
    world, *_ = asked_twice()
    for _ in range(14):
        world.step(20)
    assert world.client.node_sets == [BOOTSTRAP, [1, 2]]
    for _ in range(3):
        world.step(20)
    assert world.client.node_sets[-1] == BOOTSTRAP
    assert world.client.sent[-1].node_id in BOOTSTRAP
    world.finish(answer(topic("t", 2)))
    assert world.metadata.last_error is None


def test_trigger_of_zero_leaves_a_request_its_time() -> None:
    world = make(metadata_recovery_rebootstrap_trigger_ms=0)
    world.client.down[-2] = math.inf
    world.step()
    world.step(TIMEOUT - 1)
    world.finish(answer())
    assert world.client.resets == 0
    assert not world.metadata.bootstrapped


def test_silent_node_without_another_one_is_waited_for() -> None:
    world = make(FakeClient(down={-2: math.inf}))
    for _ in range(3):
        assert world.step(PATIENCE_S) == PATIENCE_S
    assert len(world.client.sent) == 1
    world.finish(answer())
    assert world.metadata.last_error is None


def test_slow_node_is_asked_while_another_one_is_being_connected() -> None:
    world = make(FakeClient(down={-2: NOW}, slow={-1}))
    assert world.step() == PATIENCE_S
    assert world.client.dialled == [-2]
    assert [sent.node_id for sent in world.client.sent] == [-1]
    world.step(0.3)
    assert len(world.client.sent) == 1
    # The dial succeeds first: that node gets the request as well, and no third one does.
    world.client.dialling.clear()
    world.updater.on_network()
    assert world.updater._wake.is_set()
    assert world.step() == pytest.approx(TIMEOUT)
    assert [sent.node_id for sent in world.client.sent] == [-1, -2]
    world.finish(answer())
    assert world.metadata.last_error is None


def test_slow_node_answers_although_no_other_can_be_connected() -> None:
    world = make(FakeClient(down={-2: NOW}, slow={-1}))
    for _ in range(3):
        assert world.step(PATIENCE_S) == PATIENCE_S
    assert [sent.node_id for sent in world.client.sent] == [-1]
    assert not world.updater._metadata.update_due(world.now), "data may be sent meanwhile"
    world.finish(answer())
    assert world.metadata.last_error is None


def test_free_slot_of_another_node_is_claimed_for_an_overdue_request() -> None:
    world = make(FakeClient(busy={-2}))
    world.step()
    assert world.metadata.claimed == frozenset()
    world.step(PATIENCE_S)
    assert world.metadata.claimed == {-2}, "data must leave it the next slot"
    signals = world.sent_signals
    world.client.busy.clear()
    assert world.step() == TIMEOUT
    assert [sent.node_id for sent in world.client.sent] == [-1, -2]
    assert world.metadata.claimed == frozenset()
    assert world.sent_signals == signals + 1, "data may be sent again"


def test_claimed_slot_is_released_by_an_answer() -> None:
    world = make(FakeClient(busy={-2}))
    world.step()
    world.step(PATIENCE_S)
    signals = world.sent_signals
    world.finish(answer())
    assert world.metadata.claimed == frozenset()
    assert world.sent_signals == signals + 1


def test_new_topic_is_asked_for_at_once_on_its_own() -> None:
    world = make()
    world.up()
    world.metadata.touch("u", world.now)
    world.step()
    assert world.client.sent[-1].topics == ["u"]
    world.finish(answer(topic("u", 1)))
    assert world.metadata.lookup("t") is not None
    assert world.metadata.lookup("u") is not None


@pytest.mark.parametrize(("version", "epoch"), [(8, -1), (9, 4), (13, 5)])
def test_leader_epochs_count_from_version_9_on(version: int, epoch: int) -> None:
    world = make(FakeClient(version=version))
    world.metadata.touch("t", world.now)
    world.step()
    world.finish(answer(topic("t", [partition(0, 1, epoch if epoch > 0 else 5)])))
    assert world.metadata.snapshot.leader_epoch_of(("t", 0)) == epoch  # type: ignore[arg-type]


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
    world = make()
    world.step()
    waits = []
    for attempt in range(7):
        assert len(world.client.sent) == attempt + 1
        waits.append(world.finish(failure))
        assert world.client.node_sets == [BOOTSTRAP]
        world.step(waits[-1])
    assert waits[0] <= 0.12
    assert waits[1] >= 0.16
    assert waits[-1] == pytest.approx(1.0)
    assert world.metadata.last_error is not None
    if not isinstance(failure, KafkaError) and not failure.error_code:
        assert isinstance(world.metadata.last_error, BrokerError)
        assert "empty list of brokers" in str(world.metadata.last_error)
    world.finish(answer())
    assert world.metadata.last_error is None


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
    world = make(retry_backoff_ms=1, retry_backoff_max_ms=1)
    world.up()
    start, first = world.now, len(world.client.sent)
    while world.now < start + 5:
        world.metadata.touch("t", world.now)
        world.metadata.request_update()
        world.step(0.001)
        if world.asking:
            world.finish(response)
    assert (len(world.client.sent) - first) / 5 <= 20


def test_alternating_answers_make_no_storm_either() -> None:
    world = make(retry_backoff_ms=0)
    world.up()
    start, first = world.now, len(world.client.sent)
    while world.now < start + 5:
        world.metadata.request_update()
        world.step(0.001)
        if world.asking:
            brokers = [1, 2] if len(world.client.sent) % 2 else [1, 2, 3]
            world.finish(answer(topic("t", 2), brokers=brokers))
    assert (len(world.client.sent) - first) / 5 <= 20


@pytest.mark.parametrize("error", [AuthenticationError("denied"), UnsupportedVersion("too old")])
@pytest.mark.parametrize("via", ["response", "connection"])
def test_error_that_waiting_does_not_heal_reaches_the_waiters(error: KafkaError, via: str) -> None:
    async def main() -> None:
        world = make()
        world.now = asyncio.get_running_loop().time()
        waiter = asyncio.create_task(world.metadata.wait_for_topic("t", deadline=world.now + 60))
        await asyncio.sleep(0)
        if via == "connection":
            world.client.down = {-1: math.inf, -2: math.inf}
        world.step()
        if via == "response":
            assert 0 < world.finish(error) < 0.2
        else:
            world.updater.on_disconnect(-1, error)
        with pytest.raises(type(error)) as caught:
            await waiter
        assert caught.value.__cause__ is error

    run(main)


@pytest.mark.parametrize("asking", [True, False])
def test_refusal_by_one_broker_leaves_waiters_to_the_others(asking: bool) -> None:
    async def main() -> None:
        world = make()
        world.up()
        world.now += 5
        if asking:
            world.metadata.request_update()
            world.step()
            assert world.asking
        deadline = asyncio.get_running_loop().time() + 60
        waiter = asyncio.create_task(world.metadata.wait_for_topic("new", deadline=deadline))
        await asyncio.sleep(0)
        other = world.client.sent[-1].node_id
        refusing = 3 - other
        world.client.down[refusing] = math.inf
        world.updater.on_disconnect(refusing, AuthenticationError("denied"))
        for _ in range(3):
            await asyncio.sleep(0)
            world.step(1)
            if world.asking:
                world.finish(answer(topic("t", 2), topic("new", 1)))
        assert (await waiter).partition_count("new") == 1

    run(main)


def test_disconnect_asks_for_an_update() -> None:
    world = make()
    world.up()
    assert world.step(5) > 1
    world.updater.on_disconnect(1, Disconnected("gone"))
    assert world.step() == PATIENCE_S
    assert len(world.client.sent) == 2
    assert isinstance(world.metadata.last_error, Disconnected)


def test_connect_failure_with_nobody_left_counts_as_failed_update() -> None:
    client = FakeClient(down={-1: math.inf, -2: math.inf})
    world = make(client)
    world.step()
    for _ in range(4):
        world.updater.on_disconnect(-1, DialError("refused"))
        world.now += 2
    world.updater.on_disconnect(-1, DialError("refused"))
    assert 0.8 <= world.metadata.next_update_at(world.now) - world.now <= 1.0


def test_connect_failure_with_others_left_tries_them_at_once() -> None:
    client = FakeClient(down={-1: NOW, -2: NOW})
    world = make(client)
    world.step()
    assert client.dialled == [-1]
    client.dialling.clear()
    client.down[-1] = NOW + 0.05
    world.updater.on_disconnect(-1, DialError("refused"))
    world.step()
    assert client.dialled == [-1, -2]


# -- choosing a node ----------------------------------------------------------------------------


def test_while_a_dial_is_pending_no_other_is_started() -> None:
    client = FakeClient(down={-1: NOW, -2: NOW})
    world = make(client)
    for _ in range(3):
        world.step(0.01)
    assert client.dialled == [-1]
    assert not client.sent
    client.dialling.clear()
    world.step()
    assert client.sent[-1].node_id == -1


def test_pending_dial_is_looked_at_every_second_although_others_could_be_dialled() -> None:
    client = FakeClient(down={-1: NOW, -2: NOW})
    world = make(client, metadata_recovery_strategy="none")
    assert world.step() == 1.0
    assert world.step(0.4) == 1.0
    assert client.dialled == [-1], "which one is as good is for the client to say"


def test_pass_without_a_usable_node_waits_until_the_backoff_of_one_is_over() -> None:
    client = FakeClient(down={-1: NOW + 0.7, -2: NOW + 0.3})
    world = make(client)
    assert world.step() == pytest.approx(0.3)
    world.step(0.3)
    assert client.dialled == [-2]


def test_pass_without_a_usable_node_never_spins() -> None:
    client = FakeClient(busy={-1, -2}, down={})
    world = make(client, metadata_recovery_strategy="none")
    assert world.step() == math.inf
    client.retry_at = lambda node_id, now: now  # type: ignore[method-assign]
    assert world.step() == pytest.approx(0.05)


# -- rebootstrap --------------------------------------------------------------------------------


def lose(world: World, node_id: int, until: float = math.inf) -> None:
    """The connection to a node breaks, or an attempt to make one fails."""
    world.client.dialling.discard(node_id)
    world.client.down[node_id] = until
    world.updater.on_disconnect(node_id, DialError("refused"))


@pytest.mark.parametrize("backoff", [math.inf, 0.0], ids=["in-backoff", "slow-to-refuse"])
def test_all_brokers_lost_leads_back_to_the_bootstrap_addresses_KIP_899(backoff: float) -> None:
    world = make()
    world.up()
    world.now += 1
    lose(world, 1, backoff)
    world.step()
    assert world.client.node_sets == [BOOTSTRAP, [1, 2]]
    world.client.sent[-1].fail(Disconnected("gone"))
    lose(world, 2, backoff)
    world.step()
    world.step(0.2)
    assert world.client.node_sets == [BOOTSTRAP, [1, 2], BOOTSTRAP]
    assert world.client.sent[-1].node_id in BOOTSTRAP
    assert world.client.resets == 0
    assert world.metadata.lookup("t", 1) is not None
    world.finish(answer(topic("t", 2), brokers=[3]))
    assert world.client.node_sets[-1] == [3]


def test_connection_lost_once_is_no_reason_to_bootstrap_again() -> None:
    world = make()
    world.up()
    world.now += 1
    world.client.dialling = {1, 2}
    for node_id in (1, 2):
        world.updater.on_disconnect(node_id, Disconnected("gone"))
    world.step(1)
    assert world.client.node_sets == [BOOTSTRAP, [1, 2]]
    for node_id in (1, 2):
        world.updater.on_disconnect(node_id, Disconnected("gone again"))
    world.step(1)
    assert world.client.node_sets == [BOOTSTRAP, [1, 2], BOOTSTRAP]


def test_broker_lost_before_the_last_answer_does_not_count() -> None:
    world = make()
    world.up()
    world.now += 1
    lose(world, 1)
    world.step()
    world.finish(answer(topic("t", 2)))
    lose(world, 2)
    world.step(1)
    assert world.client.node_sets == [BOOTSTRAP, [1, 2]]


def test_busy_broker_is_no_reason_to_bootstrap_again() -> None:
    world = make()
    world.up()
    world.client.busy = {2}
    for node_id in (1, 2):
        world.updater.on_disconnect(node_id, Disconnected("gone"))
    world.client.down[1] = math.inf
    world.step(1)
    assert world.client.node_sets == [BOOTSTRAP, [1, 2]]


def test_strategy_none_never_bootstraps_again() -> None:
    world = make(metadata_recovery_strategy="none")
    world.up()
    for node_id in (1, 2):
        lose(world, node_id)
    for _ in range(5):
        assert world.step(200) == math.inf
    world.client.down = {}
    world.step()
    world.finish(answer(error=129))
    assert world.client.node_sets == [BOOTSTRAP, [1, 2]]


def test_unreachable_bootstrap_addresses_are_not_set_again_and_again() -> None:
    client = FakeClient(down={-1: math.inf, -2: math.inf})
    world = make(client)
    for _ in range(20):
        lose(world, -1)
        lose(world, -2)
        world.step(1)
    assert client.node_sets == [BOOTSTRAP]
    assert client.resets == 0


def test_trigger_bootstraps_again_after_long_enough_without_answer_KIP_1102() -> None:
    world = make(metadata_recovery_rebootstrap_trigger_ms=10_000)
    world.up()
    world.client.busy = {1, 2}
    world.metadata.request_update()
    assert world.step(1) == pytest.approx(10.0)
    world.step(9)
    assert world.client.resets == 0
    world.step(1.1)
    assert world.client.resets == 1
    assert world.client.node_sets == [BOOTSTRAP, [1, 2], BOOTSTRAP]
    assert world.client.sent[-1].node_id in BOOTSTRAP


def test_trigger_of_zero_does_not_bootstrap_in_quick_succession() -> None:
    client = FakeClient(busy={-1, -2})
    world = make(client, metadata_recovery_rebootstrap_trigger_ms=0)
    for _ in range(500):
        world.step(0.01)
    assert client.resets <= 5


def test_broker_can_ask_to_bootstrap_again() -> None:
    world = make()
    world.up()
    world.metadata.request_update()
    world.step(1)
    wait = world.finish(answer(error=129))
    assert world.client.resets == 1
    assert world.client.node_sets == [BOOTSTRAP, [1, 2], BOOTSTRAP]
    assert 0.05 <= wait <= 0.12
    world.step(wait)
    assert world.client.sent[-1].node_id in BOOTSTRAP
    world.finish(answer(topic("t", 2)))
    assert world.metadata.lookup("t") is not None


def test_brokers_that_always_ask_to_bootstrap_again_make_no_storm() -> None:
    world = make(retry_backoff_ms=1)
    world.step()
    start = world.now
    while world.now < start + 5:
        wait = world.finish(answer(error=129))
        world.step(wait)
    assert len(world.client.sent) / 5 <= 20


# -- the coroutine ------------------------------------------------------------------------------

Scenario = Callable[[World, "asyncio.Task[None]"], Awaitable[None]]


def running(scenario: Scenario, client: FakeClient | None = None, **settings: Any) -> None:
    """Run a scenario beside a running updater in virtual time."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        fake = client or FakeClient()
        made = config(**settings)
        world = World(settings, fake)
        world.metadata = Metadata(made, random.Random(1))
        world.updater = MetadataUpdater(world.metadata, fake, made, loop.time)
        task = asyncio.create_task(world.updater.run())
        try:
            await asyncio.sleep(0)
            await scenario(world, task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main)


def test_run_fetches_for_a_waiter() -> None:
    async def scenario(world: World, task: asyncio.Task[None]) -> None:
        now = asyncio.get_running_loop().time()
        world.client.sent[-1].succeed(answer())
        waiter = asyncio.create_task(world.metadata.wait_for_topic("t", deadline=now + 60))
        for _ in range(5):
            await asyncio.sleep(0)
        assert world.client.sent[-1].topics == ["t"]
        world.client.sent[-1].succeed(answer(topic("t", 2)))
        assert (await waiter).partition_count("t") == 2
        assert asyncio.get_running_loop().time() == now

    running(scenario)


def test_run_wakes_although_an_earlier_wakeup_was_interrupted() -> None:
    """A signal handler that raises can leave an asyncio.Event set, and those who wait asleep."""

    async def scenario(world: World, task: asyncio.Task[None]) -> None:
        now = asyncio.get_running_loop().time()
        world.client.sent[-1].succeed(answer())
        for _ in range(5):
            await asyncio.sleep(0)
        world.updater._wake._value = True
        waiter = asyncio.create_task(world.metadata.wait_for_topic("t", deadline=now + 60))
        for _ in range(5):
            await asyncio.sleep(0)
        assert world.client.sent[-1].topics == ["t"]
        world.client.sent[-1].succeed(answer(topic("t", 2)))
        assert (await waiter).partition_count("t") == 2

    running(scenario)


def test_run_refreshes_by_age_and_sleeps_in_between_P12() -> None:
    async def scenario(world: World, task: asyncio.Task[None]) -> None:
        passes = 0
        original = world.updater.run_once

        def counted(now: float) -> float:
            nonlocal passes
            passes += 1
            return original(now)

        world.updater.run_once = counted  # type: ignore[method-assign]
        for _ in range(10):
            world.client.sent[-1].succeed(answer())
            await asyncio.sleep(300.001)
        assert len(world.client.sent) == 11
        assert passes <= 22

    running(scenario)


def test_run_wakes_when_a_connection_is_ready() -> None:
    async def scenario(world: World, task: asyncio.Task[None]) -> None:
        await asyncio.sleep(3)
        assert not world.client.sent
        world.client.dialling.clear()
        world.updater.wake()
        await asyncio.sleep(0)
        assert len(world.client.sent) == 1

    running(scenario, FakeClient(dialling={-1, -2}))


def test_unreachable_bootstrap_lets_waiters_time_out_with_the_network_error() -> None:
    async def scenario(world: World, task: asyncio.Task[None]) -> None:
        refused = DialError("connection refused")
        world.updater.on_disconnect(-1, refused)
        now = asyncio.get_running_loop().time()
        with pytest.raises(MetadataTimeout, match="boot-a:9092, boot-b:9093") as caught:
            await world.metadata.wait_for_topic("t", deadline=now + 2)
        assert caught.value.__cause__ is refused
        assert asyncio.get_running_loop().time() == now + 2
        assert not task.done()

    running(scenario, FakeClient(down={-1: math.inf, -2: math.inf}))


def test_unexpected_failure_ends_the_coroutine_with_its_cause() -> None:
    async def scenario(world: World, task: asyncio.Task[None]) -> None:
        def broken(snapshot: object) -> None:
            raise ZeroDivisionError("a bug")

        world.metadata.on_change(broken)
        world.client.sent[-1].succeed(answer())
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await task

    running(scenario)


def test_answer_after_the_end_is_ignored() -> None:
    async def scenario(world: World, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        world.metadata.close()
        world.client.sent[-1].succeed(answer())
        assert world.metadata.snapshot.generation == 1

    running(scenario)


def test_request_message_is_the_one_of_the_protocol() -> None:
    assert MetadataRequest.api_key == 3
