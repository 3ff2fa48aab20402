"""Short runs on the mock cluster: records are counted, and a missing record is detected."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from benchmarks.brokers import MockBrokers, cpu_seconds
from benchmarks.case import Case
from benchmarks.lag import CollectorTime, LoopLag
from benchmarks.micro_worker import importing, start
from benchmarks.report import table
from benchmarks.runner import Group, RecordsMissing, in_process, run_case, run_group
from benchmarks.worker import run

FEW = Case(records=2_000, seconds=60.0, partitions=5)


@pytest.fixture(scope="module")
def brokers() -> Iterator[MockBrokers]:
    found = MockBrokers()
    yield found
    found.stop()


def here(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the worker in this process; a run takes milliseconds."""
    return run(dict(job))


@pytest.mark.parametrize(
    "case",
    [
        FEW,
        FEW.with_(keyed=True, headers=1, codec="lz4", tasks=3, settle="gather"),
        FEW.with_(settle="flush", acks="1", idempotent=False, loop="asyncio"),
        FEW.with_(scenario="await", tasks=8),
        FEW.with_(scenario="bulk", keyed=True),
        FEW.with_(scenario="paced", rate=50_000),
        FEW.with_(settle="callback"),
        FEW.with_(serializer="text", settle="callback"),
        FEW.with_(serializer="json", tasks=3),
        FEW.with_(serializer="orjson", settle="on_delivery", hook="interceptor"),
        FEW.with_(partitioner="round-robin", hook="plugin", buffer="memoryview"),
        FEW.with_(scenario="await", tasks=8, timeout=30.0, partitioner="callable"),
        FEW.with_(client="aiokafka-tuned", serializer="json", settle="callback"),
        FEW.with_(client="aiokafka", scenario="await", tasks=8, timeout=30.0, buffer="bytearray"),
        FEW.with_(client="aiokafka-tuned"),
        FEW.with_(client="aiokafka", scenario="bulk"),
        FEW.with_(client="aiokafka", scenario="await", tasks=8),
        FEW.with_(client="confluent", keyed=True, headers=1),
        FEW.with_(client="confluent", serializer="text", settle="callback"),
        FEW.with_(client="confluent", scenario="bulk"),
        FEW.with_(client="confluent-silent"),
        FEW.with_(client="confluent-aio-tuned"),
        FEW.with_(client="round-trip", scenario="await"),
    ],
    ids=lambda case: f"{case.client}-{case.scenario}-{case.codec}-{case.settle}-{case.serializer}",
)
def test_every_record_of_a_run_is_in_the_topic(brokers: MockBrokers, case: Case) -> None:
    result = run_case(brokers, case, worker=in_process if case.client == "confluent" else here)
    assert result["count"] == case.records
    assert result["brokers_us"] >= 0
    assert result["seconds"] > 0
    assert ("p99_ms" in result) == (case.scenario in ("await", "paced"))


def test_columns_are_sent_as_tables(brokers: MockBrokers) -> None:
    case = FEW.with_(scenario="columns", keyed=True)
    assert run_case(brokers, case, worker=here)["count"] == case.records


def test_the_blaster_sends_whole_requests(brokers: MockBrokers) -> None:
    case = FEW.with_(client="blaster", records=100_000)
    result = run_case(brokers, case, worker=here)
    assert 0 < result["count"] <= case.records


def test_a_time_limit_ends_a_run_and_the_rest_is_settled(brokers: MockBrokers) -> None:
    case = FEW.with_(client="aiokafka", records=1_000_000, seconds=0.05)
    assert run_case(brokers, case, worker=here)["count"] < case.records


@pytest.mark.parametrize("lie", [1, -1])
def test_a_record_too_few_or_too_many_ends_the_run(brokers: MockBrokers, lie: int) -> None:
    def liar(job: Mapping[str, Any]) -> dict[str, Any]:
        result = here(job)
        result["count"] += lie
        return result

    with pytest.raises(RecordsMissing, match=r"\d+ records acknowledged, \d+ in the topic"):
        run_case(brokers, FEW, worker=liar)


def test_processor_time_of_processes_includes_their_threads() -> None:
    worker = threading.Thread(target=lambda: sum(range(3_000_000)))
    worker.start()
    worker.join()
    found = cpu_seconds([os.getpid()])
    assert found is not None
    assert abs(found - time.process_time()) < 1.0
    assert cpu_seconds([os.getpid(), 2**22 + 1]) is None


class NoBrokers(MockBrokers):
    """A cluster without brokers in which every topic reports 12 records."""

    def __init__(self) -> None:
        self.servers = "none"
        self._topics = 0

    def _create(self, name: str, partitions: int, replicas: int) -> None: ...

    def count(self, topic: str) -> int:
        return 12

    def cpu_seconds(self) -> None:
        return None


def test_without_acknowledgments_only_what_arrived_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.runner.PATIENCE", 0.0)
    case = FEW.with_(acks="0", idempotent=False, cluster="kafka")
    sent = {"count": 20, "warm_up": 2, "seconds": 1.0}
    assert run_case(NoBrokers(), case, worker=lambda job: dict(sent))["count"] == 10
    with pytest.raises(RecordsMissing):
        run_case(NoBrokers(), FEW, worker=lambda job: dict(sent))


def test_cases_take_turns_and_every_round_begins_with_another() -> None:
    order: list[str] = []

    def worker(job: Mapping[str, Any]) -> dict[str, Any]:
        order.append(job["case"]["client"])
        return {"count": 10, "warm_up": 2, "seconds": float(len(order))}

    cases = {name: FEW.with_(client=name) for name in ("aiokprod", "aiokafka", "confluent")}
    summaries = run_group(NoBrokers(), Group("g", "", cases, runs=3), worker=worker)
    assert order == [
        "aiokprod", "aiokafka", "confluent",
        "aiokafka", "confluent", "aiokprod",
        "confluent", "aiokprod", "aiokafka",
    ]  # fmt: skip
    assert [s.label for s in summaries] == list(cases)
    assert [s.runs for s in summaries] == [3, 3, 3]


def test_a_peer_that_fails_does_not_end_the_group_but_aiokprod_does(brokers: MockBrokers) -> None:
    def worker(job: Mapping[str, Any]) -> dict[str, Any]:
        if job["case"]["client"] == failing:
            raise RuntimeError("Traceback\nKafkaTimeoutError: too late\n")
        return here(job)

    group = Group("g", "", {name: FEW.with_(client=name) for name in ("aiokafka", "aiokprod")})
    failing = "aiokafka"
    peer, ours = run_group(brokers, group, runs=1, worker=worker)
    assert (peer.runs, peer.note) == (0, "KafkaTimeoutError: too late")
    assert (ours.runs, ours.note) == (1, "")
    assert "| aiokafka | failed: KafkaTimeoutError: too late |" in table([peer, ours])
    failing = "aiokprod"
    with pytest.raises(RuntimeError, match="too late"):
        run_group(brokers, group, runs=1, worker=worker)


def test_a_worker_that_fails_tells_why(brokers: MockBrokers) -> None:
    job = {"servers": "not a server", "topic": "t", "case": FEW.to_json()}
    with pytest.raises(RuntimeError, match=r"failed:[\s\S]*not a server"):
        in_process(job)


def test_topics_have_the_partitions_asked_for(brokers: MockBrokers) -> None:
    with brokers.topic(FEW.with_(partitions=17, topics=4)) as topic:
        assert brokers._admin.partition_count(topic) == 17
    assert brokers._topics >= 4


def test_loop_lag_notes_who_holds_the_loop_and_who_only_waits() -> None:
    async def main() -> tuple[LoopLag, LoopLag]:
        with LoopLag() as blocked:
            await asyncio.sleep(0.01)
            time.sleep(0.5)  # noqa: ASYNC251 - late, but no processor time
        with LoopLag(0.001) as busy:
            started = time.thread_time()
            while time.thread_time() - started < 0.03:
                pass
        return blocked, busy

    blocked, busy = asyncio.run(main())
    assert blocked.worst >= 0.4
    assert blocked.held < 0.4
    assert busy.held >= 0.03


def test_pauses_of_the_collector_are_told_apart() -> None:
    async def main() -> LoopLag:
        with CollectorTime() as collector, LoopLag(0.001, collector) as lag:
            await asyncio.sleep(0.002)
            collector._note("start", {})
            time.sleep(0.5)  # noqa: ASYNC251
            collector._note("stop", {})
            await asyncio.sleep(0.002)
        return lag

    lag = asyncio.run(main())
    assert lag.worst >= 0.4
    assert lag.apart <= lag.worst - 0.4
    with CollectorTime() as collector:
        gc.collect()
    assert collector.since(0.0) > 0
    assert collector.since(time.perf_counter()) == 0
    collector.pauses = [(1.0, 2.0), (4.0, 7.0)]
    assert [collector.since(due) for due in (0.0, 1.5, 5.0, 7.0)] == [4.0, 3.5, 2.0, 0.0]
    assert collector._note not in gc.callbacks


def test_small_figures_that_need_no_broker() -> None:
    assert start()["start_trips"] > 1
    assert importing()["import_ms"] >= 0
