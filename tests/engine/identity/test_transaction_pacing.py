"""The producer waits for the markers of the previous transaction only if that is faster, and never
for long. Partitions are added one at a time, which delays the other partitions only briefly."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from aiokprod import KafkaTimeout, Producer
from aiokprod._engine.identity.transaction_pacing import (
    BACK_TO_BACK_S,
    LEADER_PAUSE_S,
    LONGEST_HOLD_S,
    REPEATED_S,
    TRY_OTHER,
    MarkerWait,
)
from aiokprod._errors import Code
from aiokprod.testing.fake_cluster import (
    FakeCluster,
    Reaction,
    Request,
    TopicConfig,
    delay,
    lose_request,
    refuse,
)
from tests.scenarios.scenario_helpers import now
from tests.transactions.transaction_helpers import (
    ADD_PARTITIONS,
    END,
    ID,
    PRODUCE,
    committed,
    one,
    stable,
    transactional,
)

FAST, SLOW = REPEATED_S / 2, REPEATED_S * 1.5


class Course:
    """Consecutive transactions, as `MarkerWait` sees them."""

    def __init__(self) -> None:
        self.wait = MarkerWait()
        self.now = 0.0

    def one(self, without: float, waiting: float, gap: float = 0.0) -> bool:
        """Run a transaction whose first batch takes `waiting` or `without` seconds; return whether
        it waited."""
        self.wait.on_transaction_ended(self.now)
        self.now += gap
        waits = self.wait.should_wait(self.now)
        self.now += 1.0  # time between transactions
        self.wait.on_batch_opened(self.now)
        self.now += waiting if waits else without
        self.wait.on_batch_acknowledged(self.now)
        self.wait.on_batch_opened(self.now)  # later batches do not count
        self.now += 1.0
        self.wait.on_batch_acknowledged(self.now)
        return waits

    def many(self, count: int, without: float, waiting: float) -> list[bool]:
        return [self.one(without, waiting) for _ in range(count)]


def test_marker_wait_quick_batches_never_wait() -> None:
    course = Course()
    assert not any(course.many(3 * TRY_OTHER, FAST, FAST))


@pytest.mark.parametrize("waiting_pays", [True, False])
def test_marker_wait_slow_batch_times_both_ways_and_keeps_the_quicker(waiting_pays: bool) -> None:
    course = Course()
    times = (SLOW, FAST if waiting_pays else 1.2 * SLOW)
    assert course.many(2, *times) == [False, True], "both are tried"
    assert course.many(TRY_OTHER - 2, *times) == [waiting_pays] * (TRY_OTHER - 2)
    assert course.one(*times) is not waiting_pays, "the other way is tried once"
    assert course.many(TRY_OTHER - 1, *times) == [waiting_pays] * (TRY_OTHER - 1)


@pytest.mark.parametrize("waiting_pays", [True, False])
def test_marker_wait_leaves_a_way_that_becomes_slow(waiting_pays: bool) -> None:
    course = Course()
    course.many(15, SLOW, FAST if waiting_pays else 1.2 * SLOW)
    worse = (SLOW, 2 * SLOW) if waiting_pays else (3 * SLOW, 2 * SLOW)
    found = course.many(10, *worse)
    assert found[0] is waiting_pays
    assert found[-1] is not waiting_pays


def test_marker_wait_notices_that_brokers_became_quick() -> None:
    course = Course()
    course.many(15, SLOW, FAST)
    course.many(8 * TRY_OTHER, FAST, FAST)
    assert not any(course.many(3 * TRY_OTHER, FAST, FAST))


def test_marker_wait_two_outliers_change_nothing() -> None:
    course = Course()
    course.many(15, SLOW, FAST)
    course.many(2, SLOW, 10.0)
    assert course.many(15, SLOW, FAST) == [True] * 15


def test_marker_wait_ignores_transactions_that_are_not_back_to_back() -> None:
    course = Course()
    course.many(15, SLOW, FAST)
    for _ in range(10):
        assert not course.one(10 * SLOW, 10 * SLOW, gap=BACK_TO_BACK_S)
    assert course.one(SLOW, FAST)


def test_marker_wait_without_an_acknowledgment_learns_nothing() -> None:
    wait = MarkerWait()
    for _ in range(15):
        wait.on_transaction_ended(0.0)
        assert not wait.should_wait(0.0)
        wait.on_batch_acknowledged(1.0)  # nothing was sent
        wait.on_batch_opened(1.0)


@transactional()
async def test_markers_quick_one_end_each(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    for number in range(30):
        await one(producer, b"%d" % number)
    assert cluster.count(END) == 30


@transactional(cluster={"marker_s": 0.006})
async def test_markers_slow_next_transactions_start_as_soon_as_they_are_written(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.start()
    await one(producer, b"0")
    started = now()
    for number in range(1, 30):
        await one(producer, b"%d" % number)
    each = (now() - started) / 29
    assert each < 0.014, "14 ms instead of more than 20"
    await asyncio.sleep(1)
    assert committed(cluster) == [b"%d" % number for number in range(30)]
    assert cluster.transactions.ids[ID].history == [True] * 30
    if tv == 1:
        assert cluster.count(END) == 30
        assert cluster.count(ADD_PARTITIONS) <= 3 * 30


@transactional(cluster={"marker_s": 0.012}, protocols=(2,))  # TV1 does not repeat EndTxn
async def test_markers_as_slow_as_before_asked_for_about_twice(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.start()
    for number in range(10):
        await one(producer, b"%d" % number)
    ends, started = cluster.count(END), now()
    for number in range(30):
        await one(producer, b"%d" % number)
    assert cluster.count(END) - ends <= 30 * (1 + 2.2), "3 without looking back"
    assert (now() - started) / 30 < 0.018, "19 ms without looking back"


@pytest.mark.parametrize("denied", [True, False])
@transactional(cluster={"marker_s": 0.5})
async def test_markers_abort_before_anything_was_taken_is_not_mistaken_for_a_fenced_one(
    cluster: FakeCluster, producer: Producer[Any, Any], denied: bool
) -> None:
    await producer.start()
    await one(producer, b"0")
    await producer.begin_transaction()
    refused = refuse(Code.TOPIC_AUTHORIZATION_FAILED)
    admit = cluster.control(PRODUCE, refused if denied else lambda request: None)
    await producer.submit("t", b"1", partition=0)
    await asyncio.sleep(0.03)
    await producer.abort_transaction()
    admit()
    await one(producer, b"2")
    await asyncio.sleep(1)
    assert committed(cluster) == [b"0", b"2"]


@pytest.mark.parametrize("heal", ["answers", "close"])
# The coordinator of TV1 does not have an early transaction, and gets no request.
@transactional(cluster={"marker_s": 3.0}, protocols=(2,), request_timeout_ms=500)
async def test_markers_early_abort_without_an_answer_ends_in_time_and_resumes(
    cluster: FakeCluster, producer: Producer[Any, Any], heal: str
) -> None:
    await producer.start()
    await one(producer, b"0")
    await producer.begin_transaction()
    await producer.submit("t", b"1", partition=0)
    await asyncio.sleep(0.03)
    answer = cluster.control(END, lose_request())
    started = now()
    with pytest.raises(KafkaTimeout):
        await producer.abort_transaction(timeout=2.0)
    assert now() - started == pytest.approx(2.0, abs=0.01)
    if heal == "close":
        await producer.close(timeout=1.0)
        assert now() - started < 3.1
        return
    answer()
    await producer.abort_transaction(timeout=10.0)
    await one(producer, b"2")
    await asyncio.sleep(4)
    assert committed(cluster) == [b"0", b"2"]
    assert cluster.transactions.ids[ID].history[0] is True


def every_other(reaction: Reaction) -> Any:
    """Apply `reaction` to every EndTxn that repeats an earlier one. The client sends such copies to
    find out whether the markers have been written."""
    seen: set[int] = set()

    def control(request: Request) -> Reaction | None:
        epoch = request.body.producer_epoch
        if epoch in seen:
            return reaction
        seen.add(epoch)
        return None

    return control


@pytest.mark.parametrize(
    "reaction",
    [lose_request(), delay(0.04), delay(5.0), refuse(Code.PRODUCER_FENCED),
     refuse(Code.NOT_COORDINATOR), refuse(Code.UNKNOWN_SERVER_ERROR)],
    ids=["lost", "late", "very-late", "fenced", "not-coordinator", "server-error"],
)  # fmt: skip
@transactional(cluster={"marker_s": 0.006}, protocols=(2,), request_timeout_ms=2_000)
async def test_markers_copy_of_end_goes_astray_nothing_depends_on_it(
    cluster: FakeCluster, producer: Producer[Any, Any], reaction: Reaction
) -> None:
    cluster.control(END, every_other(reaction))
    await producer.start()
    verdicts = [number % 3 != 1 for number in range(30)]
    for number, commit in enumerate(verdicts):
        await producer.begin_transaction()
        await producer.send("t", b"%d" % number, partition=0)
        started = now()
        await (producer.commit_transaction() if commit else producer.abort_transaction())
        # The connection of a lost copy ends later.
        assert now() - started < 2.5
    await asyncio.sleep(1)
    assert committed(cluster) == [b"%d" % n for n, commit in enumerate(verdicts) if commit]
    await one(producer, b"last")
    await asyncio.sleep(1)
    assert cluster.transactions.ids[ID].history == [*verdicts, True]
    assert cluster.count(END) > 31, "there were copies"
    assert stable(cluster)


# -- one addition at a time --------------------------------------------------------------------


class Arrivals:
    """The times at which Produce requests arrived at each leader."""

    def __init__(self, cluster: FakeCluster, takes: dict[int, float]) -> None:
        self.began = now()
        self.first: dict[int, float] = {}
        self.count = 0
        self._takes = takes
        self.stop = cluster.control(PRODUCE, self._on_produce)

    def _on_produce(self, request: Request) -> Reaction | None:
        self.count += 1
        for topic in request.body.topic_data:
            for partition in topic.partition_data:
                self.first.setdefault(partition.index, request.time - self.began)
        takes = self._takes.get(request.broker_id, 0.0)
        return delay(takes) if takes else None

    @property
    def distances(self) -> list[float]:
        times = sorted(self.first.values())
        return [round(later - earlier, 6) for earlier, later in itertools.pairwise(times)]


async def spread(producer: Producer[Any, Any], cluster: FakeCluster, took: float) -> Arrivals:
    """Run one transaction with three leaders, each of which needs `took` seconds."""
    arrivals = Arrivals(cluster, dict.fromkeys((1, 2, 3), took))
    async with producer.transaction():
        for partition in range(3):
            await producer.submit("t", b"%d" % partition, partition=partition)
    arrivals.stop()
    return arrivals


@pytest.mark.parametrize("took", [0.003, 0.015, 0.06])
@transactional(cluster={"brokers": 3})
async def test_leaders_are_asked_one_after_the_other(
    cluster: FakeCluster, producer: Producer[Any, Any], took: float, tv: int
) -> None:
    """This holds even if the leaders are slow once, because they were quick in the previous
    transaction."""
    await producer.warm(["t"])
    await spread(producer, cluster, 0.003)
    arrivals = await spread(producer, cluster, took)
    if tv == 1:
        assert max(arrivals.distances) < took, "the coordinator knows them all beforehand"
    else:
        assert all(took <= distance <= took + 0.005 for distance in arrivals.distances)
    assert sorted(committed(cluster)) == sorted(2 * [b"0", b"1", b"2"])


@transactional(cluster={"brokers": 3})
async def test_distant_leaders_are_asked_in_intervals(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.warm(["t"])
    for _ in range(2):
        arrivals = await spread(producer, cluster, 0.2)
    if tv == 2:
        assert arrivals.distances == pytest.approx([LEADER_PAUSE_S] * 2, abs=0.002)


@transactional(cluster={"brokers": 3})
async def test_unresponsive_leader_delays_the_others_briefly(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.warm(["t"])
    await spread(producer, cluster, 0.003)
    arrivals = Arrivals(cluster, dict.fromkeys((1, 2, 3), 5.0))
    async with producer.transaction(timeout=60):
        for partition in range(3):
            await producer.submit("t", b"%d" % partition, partition=partition)
        await asyncio.sleep(1)
        assert len(arrivals.first) == 3
        arrivals.stop()
    if tv == 2:
        assert arrivals.distances == pytest.approx([LONGEST_HOLD_S] * 2, abs=0.002)
    assert len(committed(cluster)) == 6


@transactional(cluster={"brokers": 3})
async def test_retried_batch_delays_the_others_briefly(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.warm(["t"])
    home = {cluster.leader_of("t", p).broker_id: p for p in range(3)}
    reactions = [
        Reaction(process=False, error=Code.REQUEST_TIMED_OUT, after_s=0.3),
        Reaction(before_s=5.0),
    ]
    again = asyncio.Event()

    def react(request: Request) -> Reaction | None:
        if len(reactions) == 1:
            again.set()
        return reactions.pop(0) if reactions else None

    cluster.control(PRODUCE, react, broker_id=1)
    async with producer.transaction(timeout=60):
        slow = await producer.submit("t", b"slow", partition=home[1])
        await again.wait()
        before = now()
        await producer.send("t", b"other", partition=home[2])
        assert now() - before < LONGEST_HOLD_S + 0.02
        await slow
    assert sorted(committed(cluster)) == [b"other", b"slow"]


@transactional(cluster={"brokers": 3}, protocols=(2,))  # in TV1 Produce requests add no partitions
async def test_partition_that_was_added_is_not_held_back(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.warm(["t"])
    arrivals = Arrivals(cluster, {2: 0.05, 3: 0.05})
    home = {cluster.leader_of("t", p).broker_id: p for p in range(3)}
    async with producer.transaction():
        await producer.send("t", b"joined", partition=home[1])
        slow = [await producer.submit("t", b"slow", partition=home[n]) for n in (2, 3)]
        before = now()
        await asyncio.sleep(0.001)
        await producer.send("t", b"again", partition=home[1])
        assert now() - before < 0.01
        await asyncio.gather(*slow)
    assert arrivals.count == 4
    assert cluster.count(END) == 1


@transactional(cluster={"brokers": 3})
async def test_close_while_leaders_are_held_back_leaves_no_timer(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """The harness fails if anything remains open."""
    await producer.warm(["t"])
    Arrivals(cluster, dict.fromkeys((1, 2, 3), 0.01))
    await producer.begin_transaction()
    for partition in range(3):
        await producer.submit("t", b"x", partition=partition)
    await asyncio.sleep(0)
    await producer.close(timeout=0)
    assert committed(cluster) == []


@transactional(cluster={"brokers": 1})
async def test_topic_that_takes_no_grown_batch_costs_no_abort(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """This holds even if each response to a grown batch is lost: the batch is divided although it
    may be in the log."""
    cluster.create_topic("small", 1, config=TopicConfig(max_message_bytes=300_000))
    attempts = 0
    give_up = 0.0

    def lose(request: Request) -> Reaction | None:
        sizes = [len(p.records) for t in request.body.topic_data for p in t.partition_data]
        return lost() if max(sizes) > 300_000 and request.time < give_up else None

    async def body(txn: Any) -> None:
        nonlocal attempts, give_up
        attempts += 1
        give_up = now() + 0.05
        for _ in range(2000):
            await producer.submit("small", bytes(1000), partition=0)

    def lost() -> Reaction:
        return Reaction(process=False, silent=True, close=True)

    await producer.warm(["small"])
    cluster.control(PRODUCE, lose)
    await producer.run_transaction(body, timeout=300)
    assert attempts == 1
    assert len(committed(cluster, "small")) == 2000


@transactional(batch_size=1000, cluster={"brokers": 3})
async def test_keyless_records_of_a_transaction_keep_to_few_partitions(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.warm(["t"])
    used: list[set[int]] = []
    for _ in range(30):
        before = [cluster.committed_values("t", p) for p in range(3)]
        async with producer.transaction():
            for _ in range(60):
                await producer.submit("t", bytes(90))  # 5 400 bytes; the limit is 8 000
        after = [cluster.committed_values("t", p) for p in range(3)]
        used.append({p for p in range(3) if len(after[p]) > len(before[p])})
    assert [len(partitions) for partitions in used] == [1] * 30
    assert {p for partitions in used for p in partitions} == {0, 1, 2}, (
        "each transaction chooses again"
    )
