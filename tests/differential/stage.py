"""Runs a script with one client and records what happened."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiokprod.testing import virtual
from aiokprod.testing.fake_cluster import FakeCluster, Reaction, Request, edit, serve_tcp
from aiokprod.testing.fake_cluster.batches import read_batch
from aiokprod.testing.fake_cluster.control import ProduceFault, ProduceScript
from aiokprod.testing.fake_cluster.transactions import Phase
from tests.differential.clients import (
    GONE,
    HUNG,
    JAVA,
    LIBRDKAFKA,
    OURS,
    TIMEOUT,
    Client,
    Ours,
    Report,
)
from tests.differential.odd_metadata import ACTIONS, EDITS, TRANSACTIONAL_ID, every_log
from tests.differential.script import (
    API_NAMES,
    GROUP,
    METADATA,
    PRODUCE,
    TOPIC,
    ApiCode,
    Break,
    Call,
    Clear,
    Do,
    Odd,
    Pause,
    ProduceCode,
    Script,
    Send,
    Step,
    Throttle,
    Wait,
    When,
    settings_of,
)

PARTITIONS: Final = 3
CLOSE_MS: Final = 3000
GRACE_S: Final = 6.0
"""Seconds after its deadline until a call counts as hung; no busy machine reaches it."""

OPEN_S: Final = 120.0
"""Additional seconds for `open`, which includes the start of another client's process."""

FRESH_TRIES: Final = 3
_FETCH: Final = 1
_GARBAGE: Final = b"\x7f\xff\xff\xff" + b"\xde\xad" * 16


@dataclass
class Sent:
    """A submitted record.

    Attributes:
        number: position in the order of submission.
        transaction: number of its transaction, -1 outside a transaction.
        when: loop time of the submission in s.
        fresh: sent after the end of the script.
    """

    number: int
    value: str
    topic: str
    partition: int
    transaction: int
    fresh: bool
    report: Report | None = None
    waits: asyncio.Future[Report] | None = None


@dataclass
class Called:
    """A transactional call, `init` or `close`, and its result."""

    name: str
    report: Report
    transaction: int
    fresh: bool


@dataclass
class Evidence:
    """What one client did in one script.

    Attributes:
        logs: values by offset of every partition that ever existed: (topic, partition, values).
        committed: the same logs as a read_committed consumer sees them.
        requests: number of requests of each API before the epilogue.
        alive: a fresh record was acknowledged (and committed) after the script.
        fresh_tries: attempts at the fresh record.
        markers: per transactional id, verdicts in order.
        verdicts: transaction number to "committed", "aborted", "unknown" as the client reported.
        left_ongoing: commits and aborts that were reported as successful while the transaction was
            still open at the coordinator.
        pauses: s between successive Produce requests.
        left_open: connections that the brokers still had after close.
        met: (number of the fault in the script, what it affected) in order: the values of records,
            or the name of the request.
    """

    client: str
    script: Script
    sent: list[Sent] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    logs: list[tuple[str, int, dict[int, str]]] = field(default_factory=list)
    committed: list[tuple[str, int, list[str]]] = field(default_factory=list)
    requests: Counter[int] = field(default_factory=Counter)
    verdicts: dict[int, str] = field(default_factory=dict)
    left_ongoing: list[str] = field(default_factory=list)
    group_offsets: dict[Any, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    alive: bool = False
    fresh_tries: int = 0
    left_open: int = 0
    seconds: float = 0.0
    met: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        """True if the client's process ended during the script."""
        reports = [one.report for one in self.sent] + [one.report for one in self.calls]
        return any(report is not None and report.label == GONE for report in reports)

    def values(self, partition: int, *, committed: bool = False) -> list[str]:
        """Return the script's records in a partition (of all topics of that name), in log order."""
        own = {sent.value for sent in self.sent if not sent.fresh}
        if committed:
            return [v for _, p, vs in self.committed if p == partition for v in vs if v in own]
        return [v for _, p, vs in self.logs if p == partition for v in vs.values() if v in own]

    def told(self) -> str:
        """Return all reports and logs as a few lines."""
        sent = ", ".join(f"{one.value}:{one.report}" for one in self.sent)
        calls = ", ".join(f"{one.name}:{one.report}" for one in self.calls)
        logs = {p: list(values.items()) for _, p, values in self.logs if values}
        counts = {API_NAMES.get(api, str(api)): n for api, n in sorted(self.requests.items())}
        return (
            f"  {self.client}: {sent}\n    calls {calls}\n    logs {logs}\n    requests {counts}"
            f" alive {self.alive} after {self.fresh_tries} tries, {self.seconds:.2f} s"
            + f"\n    faults met {self.met}"
            + (f"\n    violations {self.violations}" if self.violations else "")
        )


async def play(script: Script, name: str, client: Client) -> Evidence:
    """Run a script over TCP with a client that has not been opened."""
    cluster = _cluster(script, name)
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with serve_tcp(cluster) as bootstrap:
        evidence = await _Play(script, name, client, cluster).run(bootstrap)
    evidence.seconds = loop.time() - start
    return evidence


def play_in_memory(script: Script, seed: int) -> Evidence:
    """Run a script with aiokprod in virtual time, so that a busy machine causes no timeout, and no
    real time is spent waiting.

    Args:
        seed: seed of the jitter, and of the order of tasks that are ready at the same time.
    """

    async def main() -> Evidence:
        cluster = _cluster(script, OURS)
        loop = asyncio.get_running_loop()
        start = loop.time()
        client = Ours(cluster.environment(seed))
        evidence = await _Play(script, OURS, client, cluster).run(cluster.bootstrap_servers)
        evidence.seconds = loop.time() - start
        return evidence

    return virtual.run(main, seed=seed, debug=False, check_leaks=False, collect_garbage=False)


def _cluster(script: Script, name: str) -> FakeCluster:
    cluster = FakeCluster(
        script.brokers,
        version_profile=script.profile,
        default_replication=script.brokers,
        auto_create=False,
        transaction_version={"tv1": 1, "tv2": 2}.get(script.mode, 0),
    )
    if name == LIBRDKAFKA:
        # librdkafka writes record batches (v2) only to brokers that can also fetch them.
        for broker in cluster.brokers.values():
            ranges = {**broker.profile.ranges, _FETCH: (4, 11)}
            broker.profile = replace(broker.profile, ranges=ranges)
    cluster.create_topic(TOPIC, PARTITIONS)
    return cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumberedFault(ProduceFault):
    number: int


class _NotingScript(ProduceScript):
    """Reports to `met` the number of each fault that affects a batch, and the batch's partition."""

    def __init__(self, met: Callable[[int, int], None]) -> None:
        super().__init__()
        self._met = met

    def take(self, where: tuple[str, int]) -> ProduceFault | None:
        fault = super().take(where)
        if isinstance(fault, _NumberedFault):
            self._met(fault.number, where[1])
        return fault


class _Play:
    def __init__(self, script: Script, name: str, client: Client, cluster: FakeCluster) -> None:
        self._script = script
        self._client = client
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._evidence = Evidence(name, script)
        self._transaction = -1
        self._in_transaction = False
        self._fresh = False
        self._watchers: list[list[Any]] = []
        self._faults = itertools.count()
        self._request: Request | None = None  # the request that a broker is processing
        cluster.produce_script = _NotingScript(self._meet)

    async def run(self, bootstrap: str) -> Evidence:
        evidence = self._evidence
        settings = settings_of(self._script)
        if evidence.client == JAVA:
            settings["enable.metrics.push"] = "false"
            settings["metric.reporters"] = ""
        arguments = [f"{name}={value}" for name, value in settings.items()]
        self._cluster.control(None, self._watch)
        report = await self._within(
            self._client.begin("open", f"bootstrap.servers={bootstrap}", *arguments),
            extra_s=OPEN_S,
        )
        if report.label == GONE:
            evidence.calls.append(Called("open", report, -1, False))
            return evidence
        if not report.ok:
            raise RuntimeError(f"{evidence.client} could not be opened: {report}")
        for step in self._script.steps:
            await self._step(step)
        await self._step(Wait())
        if self._in_transaction:
            await self._end()
        self._clear()
        notes = self._cluster.requests
        evidence.requests = Counter(note.api_key for note in notes)
        times = [note.time for note in notes if note.api_key == PRODUCE]
        evidence.pauses = [after - before for before, after in itertools.pairwise(times)]
        await self._epilogue()
        await self._close()
        self._read_cluster()
        return evidence

    # -- steps ----------------------------------------------------------------------------------

    async def _step(self, step: Step) -> None:
        if isinstance(step, Send):
            for _ in range(step.count):
                self._send(step.partition)
        elif isinstance(step, Wait):
            await self._settle()
        elif isinstance(step, Pause):
            await asyncio.sleep(step.milliseconds / 1000)
        elif isinstance(step, Clear):
            self._clear()
        elif isinstance(step, Call):
            await self._transactional(step.name)
        elif isinstance(step, Do):
            self._do(step)
        else:
            self._install(step)

    def _send(self, partition: int) -> Sent:
        evidence = self._evidence
        number = len(evidence.sent)
        sent = Sent(
            number,
            f"{'z' if self._fresh else 'r'}{number}",
            TOPIC,
            partition,
            self._transaction if self._in_transaction else -1,
            self._fresh,
        )
        evidence.sent.append(sent)
        sent.waits = self._client.begin("send", TOPIC, str(partition), _padded(sent.value))
        return sent

    async def _settle(self) -> None:
        """Wait for the outcome of all records; a record that takes far too long counts as hung.
        Calls run sequentially, and each may block for max.block.ms."""
        waiting = {one.waits: one for one in self._evidence.sent if one.waits and not one.report}
        if not waiting:
            return
        blocked_ms = len(waiting) * self._script.block_ms
        limit = (self._script.deadline_ms + blocked_ms) / 1000 + GRACE_S
        done, _ = await asyncio.wait(waiting, timeout=limit)
        for future, sent in waiting.items():
            sent.report = future.result() if future in done else _hung("send", limit)

    async def _within(self, future: asyncio.Future[Report], extra_s: float = 0.0) -> Report:
        limit = (self._script.deadline_ms + self._script.block_ms) / 1000 + GRACE_S + extra_s
        done, _ = await asyncio.wait([future], timeout=limit)
        return future.result() if done else _hung("call", limit)

    async def _call(self, name: str, *arguments: str) -> Report:
        begun = self._loop.time()
        report = await self._within(self._client.begin(name, *arguments))
        report = replace(report, seconds=self._loop.time() - begun)
        self._evidence.calls.append(Called(name, report, self._transaction, self._fresh))
        entry = self._cluster.transactions.ids.get(TRANSACTIONAL_ID)
        ongoing = entry is not None and entry.phase is Phase.ONGOING
        if name in ("commit", "abort") and report.ok and ongoing:
            self._evidence.left_ongoing.append(f"{name} of transaction {self._transaction}")
        return report

    async def _transactional(self, name: str) -> None:
        if name == "end":
            await self._end()
        elif name == "offsets":
            await self._call("offsets", GROUP, "in", "0", str(10 + self._transaction))
        elif name == "begin":
            self._transaction += 1
            report = await self._call("begin")
            self._in_transaction = report.ok
            self._evidence.verdicts[self._transaction] = "open" if report.ok else "none"
        elif name == "init":
            report = await self._call("init")
            if report.label == TIMEOUT:
                # The result of the first call is not reported; the call may be repeated.
                self._clear()
                await self._call("init")
        else:
            report = await self._call(name)
            told = {"commit": "committed", "abort": "aborted"}[name]
            self._evidence.verdicts[self._transaction] = told if report.ok else _unknown(report)
            if report.ok:
                self._in_transaction = False

    async def _end(self) -> bool:
        """Commit as applications do: abort what cannot be committed, retry calls that timed out."""
        verdicts = self._evidence.verdicts
        self._in_transaction = False
        report = await self._call("commit")
        if report.label == TIMEOUT:
            self._clear()
            report = await self._call("commit")
        if report.ok:
            verdicts[self._transaction] = "committed"
            return True
        verdicts[self._transaction] = _unknown(report)
        report = await self._call("abort")
        if report.label == TIMEOUT:
            self._clear()
            report = await self._call("abort")
        if report.ok:
            verdicts[self._transaction] = "aborted"
        return False

    # -- after the script -----------------------------------------------------------------------

    async def _epilogue(self) -> None:
        """After all faults have ended, check whether one more record is acknowledged."""
        self._fresh = True
        evidence = self._evidence
        for evidence.fresh_tries in range(1, FRESH_TRIES + 1):
            if any(one.report.label == HUNG for one in evidence.calls):
                return
            if any(one.fresh and one.report.label == TIMEOUT for one in evidence.calls):
                return  # the cluster works, so the client is stuck
            if self._script.transactional:
                evidence.alive = await self._fresh_transaction()
            else:
                sent = self._send(0)
                await self._settle()
                evidence.alive = sent.report is not None and sent.report.ok
            if evidence.alive:
                return
            await asyncio.sleep(0.1)  # a response to the client may still be in flight

    async def _fresh_transaction(self) -> bool:
        ready = any(one.name == "init" and one.report.ok for one in self._evidence.calls)
        if not ready and not (await self._call("init")).ok:
            return False
        await self._transactional("begin")
        if not self._in_transaction:
            await self._call("abort")
            return False
        sent = self._send(0)
        ended = await self._end()
        await self._settle()
        return ended and sent.report is not None and sent.report.ok

    async def _close(self) -> None:
        report = await self._call("close", str(CLOSE_MS))
        if report.label == HUNG and hasattr(self._client, "give_up"):
            await self._client.give_up()
        for _ in range(40):
            self._evidence.left_open = self._cluster.open_connections()
            if not self._evidence.left_open:
                break
            await asyncio.sleep(0.025)

    def _read_cluster(self) -> None:
        evidence, cluster = self._evidence, self._cluster
        for topic, index, log in every_log(cluster):
            stored = [*log.removed, *log.batches]
            values = {r.offset: _plain(r.value) for b in stored for r in b.records()}
            evidence.logs.append((topic, index, values))
            seen = [_plain(record.value) for record in log.committed()]
            evidence.committed.append((topic, index, seen))
        evidence.group_offsets = dict(cluster.transactions.committed_offsets.get(GROUP, {}))
        evidence.violations = list(cluster.violations)
        evidence.refusals = [f"{one.code.name}: {one.text}" for one in cluster.refusals]

    # -- faults ---------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._cluster.script.clear()
        self._cluster.produce_script.clear()
        self._watchers.clear()
        self._cluster.refresh_views()
        ACTIONS["start"](self._cluster, Do("start"))
        for partition in range(len(self._cluster.topics[TOPIC].partitions)):
            ACTIONS["give-leader"](self._cluster, Do("give-leader", partition))
        self._cluster.control(None, self._watch)

    def _watch(self, request: Request) -> None:
        """Count requests, to trigger actions at the n-th request. Never reacts itself."""
        self._request = request
        for watcher in list(self._watchers):
            if watcher[0] == request.api_key:
                watcher[1] -= 1
                if watcher[1] == 0:
                    self._watchers.remove(watcher)
                    self._meet(watcher[3])
                    self._do(watcher[2])

    def _do(self, do: Do) -> None:
        ACTIONS[do.what](self._cluster, do)
        if do.what == "take-leader":
            # the second metadata request returns a leader
            self._watchers.append([METADATA, 2, Do("give-leader", do.partition), None])

    def _meet(self, number: int | None, partition: int | None = None) -> None:
        """Record what a fault affects: the current request, or its batch for a partition."""
        request = self._request
        if request is None or number is None:
            return
        met: tuple[str, ...] = (API_NAMES.get(request.api_key, str(request.api_key)),)
        if request.api_key == PRODUCE:
            met = tuple(
                _plain(record.value)
                for topic in request.body.topic_data
                for item in topic.partition_data
                if partition in (None, item.index)
                for record in read_batch(bytes(item.records or b""), produce_version=13).records
            )
        self._evidence.met.append((number, met))

    def _install(self, fault: Any) -> None:
        cluster = self._cluster
        number = next(self._faults)
        if isinstance(fault, When):
            self._watchers.append([fault.api, fault.number, fault.do, number])
        elif isinstance(fault, ProduceCode):
            where = TOPIC, fault.partition
            if fault.skip:
                cluster.produce_script.add(where, None, fault.skip)
            errors = ((0, "refused"),) if fault.records else ()
            made = _NumberedFault(
                number=number,
                code=fault.code,
                append=fault.append,
                leader_hint=fault.hint,
                record_errors=errors,
            )
            cluster.produce_script.add(where, made, fault.times)
        elif isinstance(fault, Throttle):
            milliseconds = fault.milliseconds

            def throttled(message: Any) -> Any:
                if not hasattr(message, "throttle_time_ms"):
                    return message
                return replace(message, throttle_time_ms=milliseconds)

            cluster.control(fault.api, edit(throttled), times=fault.times)
        elif isinstance(fault, ApiCode):
            reaction = Reaction(process=fault.process, error=fault.code)
            self._control(fault.api, lambda request: reaction, fault, number)
        elif isinstance(fault, Break):
            broken = _breaking(fault)
            self._control(fault.api, lambda request: broken, fault, number)
        elif isinstance(fault, Odd):
            api, function = EDITS[fault.what]

            def edited(request: Request) -> Reaction:
                return edit(lambda message: function(cluster, request, message, fault.value))

            self._control(api, edited, fault, number)

    def _control(
        self,
        api: int,
        make: Callable[[Request], Reaction],
        fault: ApiCode | Break | Odd,
        number: int,
    ) -> None:
        waiting = [fault.skip]

        def after_skipping(request: Request) -> Reaction | None:
            if waiting[0] > 0:
                waiting[0] -= 1
                return None
            self._meet(number)
            return make(request)

        self._cluster.control(api, after_skipping, times=fault.times)


def _breaking(fault: Break) -> Reaction:
    if fault.how == "reset":
        return Reaction(process=fault.process, cut_at=0)
    if fault.how == "half":
        return Reaction(process=fault.process, cut_at=8)
    if fault.how == "close":
        return Reaction(process=fault.process, silent=True, close=True)
    if fault.how == "silent":
        return Reaction(process=fault.process, silent=True)
    if fault.how == "garbage":
        return Reaction(process=fault.process, raw=_GARBAGE)
    return Reaction(
        process=fault.process, edit_frame=lambda frame: frame[:4] + b"\x7f\0\0\0" + frame[8:]
    )


def _padded(value: str) -> str:
    """Pad a value so that it needs a separate batch: with batch.size=0 Java still puts very small
    records into one batch."""
    return value.ljust(100, ".")


def _plain(value: bytes | None) -> str:
    return (value or b"").decode().rstrip(".")


def _hung(what: str, limit: float) -> Report:
    return Report(label=HUNG, error=HUNG, message=f"{what} had not ended after {limit:.1f} s")


def _unknown(report: Report) -> str:
    """Return what an application can conclude from a failed call."""
    return "refused" if report.outcome in ("rejected", "not_sent") else "unknown"
