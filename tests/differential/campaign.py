"""Runs many scripts concurrently and judges each; scripts with findings are repeated before the
findings count."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.differential.clients import (
    CLIENTS,
    JAVA,
    LIBRDKAFKA,
    OURS,
    Client,
    Ours,
    Process,
    Remote,
    processes,
)
from tests.differential.comparison import AGAINST_US, Finding, findings
from tests.differential.differences import ROWS, Row
from tests.differential.generator import GENERATED
from tests.differential.journal import Journal
from tests.differential.script import MODES, Call, Script, Send, Step, Wait
from tests.differential.stage import Evidence, play, play_in_memory

SECOND_OPINION: Final = 10
"""librdkafka plays every script of the catalogue and every tenth generated one."""

_TICK_S: Final = 0.25
_LATE_S: Final = 0.3
"""Lateness of a timer above which fewer scripts are played at a time, so that on a busy machine
other scripts do not delay a script until near its deadlines."""

_SPOILT_S: Final = 0.5
"""Total lateness of such timers that invalidates the scripts played at that time: a deadline of
some of them may be near."""

_CALM_TICKS: Final = 4
"""Number of consecutive punctual timers before an invalidated script is played again."""

_PATIENCE_S: Final = 120.0
_FEWEST: Final = 4
_MOST_SPOILT: Final = 5


@dataclass
class Result:
    """The result of a script.

    Attributes:
        explained: findings with the row of docs/differences.md that explains them.
        unexplained: the others, seen in most of the repetitions.
        unsteady: seen once and not again.
    """

    script: Script
    evidence: dict[str, Evidence]
    explained: list[tuple[Finding, Row]] = field(default_factory=list)
    unexplained: list[Finding] = field(default_factory=list)
    unsteady: list[Finding] = field(default_factory=list)


class Campaign:
    """Runs scripts with all clients.

    Args:
        processes: processes of the clients that run outside this one.
        jobs: number of scripts at a time.
        clients: clients that play the scripts.
        repeats: how often a script with open findings is played; findings in most of the plays
            count.
        journal: stores the clients' evidence; stored plays are not repeated.
        journaled: clients whose evidence is stored.
        tcp: aiokprod plays over TCP in real time, like the other clients, not in virtual time.
    """

    def __init__(
        self,
        processes: dict[str, Process],
        jobs: int,
        clients: tuple[str, ...] = CLIENTS,
        repeats: int = 3,
        journal: Journal | None = None,
        journaled: tuple[str, ...] = CLIENTS,
        tcp: bool = False,
    ) -> None:
        self._repeats = repeats
        self._processes = processes
        self._jobs = jobs
        self._clients = clients
        self._journal = journal
        self._journaled = journaled
        self._tcp = tcp
        self._in_memory = asyncio.Lock()
        self._limit = min(_FEWEST, jobs)
        self._active = 0
        self._lateness = 0.0
        self._calm = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self, scripts: Iterable[Script], done: Callable[[Result], None]) -> Counter[str]:
        """Run all scripts; `done` gets each result. Returns how often each row explained one."""
        matched: Counter[str] = Counter()
        waiting = iter(scripts)

        async def work() -> None:
            for script in waiting:
                while self._active >= self._limit:
                    self._room.clear()
                    await self._room.wait()
                self._active += 1
                try:
                    result = await self.judged(script)
                finally:
                    self._active -= 1
                    self._room.set()
                matched.update({row.id for _, row in result.explained})
                done(result)
                await asyncio.sleep(0)  # results from the journal do not suspend this task

        adapting = asyncio.create_task(self._adapt())
        try:
            await asyncio.gather(*[work() for _ in range(self._jobs)])
        finally:
            adapting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await adapting
        gc.collect()
        return matched

    async def _adapt(self) -> None:
        """Play fewer scripts at a time while timers are late, and more while they are not."""
        loop = asyncio.get_running_loop()
        fewest = min(_FEWEST, self._jobs)
        calm = 0
        while True:
            begun = loop.time()
            await asyncio.sleep(_TICK_S)
            late = loop.time() - begun - _TICK_S
            calm += 1
            if late > _LATE_S / 3:
                self._lateness += late
                calm = 0
                self._calm.clear()
            if calm >= _CALM_TICKS:
                self._calm.set()
            if late > _LATE_S:
                self._limit = max(fewest, self._limit * 2 // 3)
            elif late <= _LATE_S / 3:
                self._limit = min(self._jobs, self._limit + 1)
                self._room.set()

    async def judged(self, script: Script) -> Result:
        """Run a script. A finding that cannot be explained must occur in two of three runs."""
        evidence = await self.played(script)
        result = Result(script, evidence)
        open_findings = _sort(result, evidence)
        if not open_findings:
            return result
        seen: Counter[tuple[str, str]] = Counter({_key(one) for one in open_findings})
        for number in range(1, self._repeats):
            again = Result(script, await self.played(script, number))
            seen.update({_key(one) for one in _sort(again, again.evidence)})
        for finding in open_findings:
            # One violation of a rule is enough.
            certain = finding.hard or seen[_key(finding)] > self._repeats // 2
            (result.unexplained if certain else result.unsteady).append(finding)
        return result

    async def played(self, script: Script, number: int = 0) -> dict[str, Evidence]:
        """Run a script with all clients at once, each with a separate cluster. `number` counts the
        repetitions."""
        names = [name for name in self._clients if name != LIBRDKAFKA or _second_opinion(script)]
        found = await asyncio.gather(*[self._played_to(script, name, number) for name in names])
        return {one.client: one for one in found}

    async def _played_to(self, script: Script, name: str, number: int) -> Evidence:
        journal = self._journal if name in self._journaled else None
        known = journal.get(script, name, number) if journal is not None else None
        if known is not None:
            return known
        if name == OURS and not self._tcp:
            async with self._in_memory:
                try:
                    evidence = await asyncio.to_thread(play_in_memory, script, number)
                except Exception as error:
                    error.add_note(f"in script {script.name}")
                    raise
        else:
            evidence = await self._unspoilt(script, name)
        if journal is not None and not evidence.gone:
            journal.put(script, number, evidence)
        return evidence

    async def _unspoilt(self, script: Script, name: str) -> Evidence:
        """Run a script with one client, and again if the machine was busy during the run."""
        for _ in range(_MOST_SPOILT):
            before = self._lateness
            evidence = await self._attempted(script, name)
            if self._lateness - before < _SPOILT_S:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._calm.wait(), _PATIENCE_S)
        return evidence

    async def _attempted(self, script: Script, name: str) -> Evidence:
        """Run a script with one client, and again if its process ended: another script may have
        been the reason."""
        for _ in range(2):
            evidence = await play(script, name, self._client(name))
            if not evidence.gone:
                return evidence
            await self._processes[name].start()
        return await play(script, name, self._client(name))

    def _client(self, name: str) -> Client:
        return Ours() if name == OURS else Remote(self._processes[name])


def _second_opinion(script: Script) -> bool:
    """Return True if librdkafka runs this script too."""
    if script.family != GENERATED:
        return True
    return int(script.name.rpartition("/")[2]) % SECOND_OPINION == 0


def _key(finding: Finding) -> tuple[str, str]:
    return finding.client, finding.kind


def _sort(result: Result, evidence: dict[str, Evidence]) -> list[Finding]:
    """Add the explained findings to the result and return the others."""
    rest = []
    rows = ROWS if {OURS, JAVA} <= evidence.keys() else []
    for finding in findings(evidence):
        row = next((row for row in rows if row.explains(finding, evidence)), None)
        if row is None:
            rest.append(finding)
        else:
            result.explained.append((finding, row))
    causes = [(cause, row) for cause, row in result.explained if row.follows]
    unexplained = []
    for finding in rest:
        row = next((row for cause, row in causes if can_follow(finding, cause)), None)
        if row is None:
            unexplained.append(finding)
        else:
            result.explained.append((finding, row))
    return unexplained


def can_follow(finding: Finding, cause: Finding) -> bool:
    """Return True if a difference may be a consequence of another one of the same script. A failure
    of our client where Java succeeds is one only in the same or a later transaction."""
    if finding.hard:
        return False
    return finding.kind not in AGAINST_US or 0 <= cause.transaction <= finding.transaction


@asynccontextmanager
async def campaign(
    jobs: int,
    clients: tuple[str, ...] = CLIENTS,
    repeats: int = 3,
    journal: Journal | None = None,
    journaled: tuple[str, ...] = CLIENTS,
    tcp: bool = False,
) -> AsyncIterator[Campaign]:
    """A campaign whose processes have already been warmed up."""
    async with processes(clients) as running:
        warming = Campaign(running, jobs, clients, repeats, tcp=tcp)
        for mode in MODES:
            steps: tuple[Step, ...] = (Send(0), Wait())
            if mode in ("tv1", "tv2"):
                steps = (Call("init"), Call("begin"), *steps, Call("end"))
            for _ in range(3):
                await warming.played(Script("warm-up", "warm-up", mode, steps))
        yield Campaign(running, jobs, clients, repeats, journal, journaled, tcp)
