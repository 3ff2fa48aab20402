"""Runs many scripts side by side and judges each; repeats those with findings before it counts
them."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.differential.clients import CLIENTS, OURS, Client, Ours, Process, Remote, processes
from tests.differential.differences import ROWS, Row
from tests.differential.judge import Finding, findings
from tests.differential.script import MODES, Call, Script, Send, Step, Wait
from tests.differential.stage import Evidence, play


@dataclass
class Result:
    """What came of a script.

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
    """Plays scripts to all clients.

    Args:
        processes: of the clients that are not in this one.
        jobs: scripts at a time.
        clients: to play to.
        repeats: how often a script with open findings is played; those in most of them count.
    """

    def __init__(
        self,
        processes: dict[str, Process],
        jobs: int,
        clients: tuple[str, ...] = CLIENTS,
        repeats: int = 3,
    ) -> None:
        self._repeats = repeats
        self._processes = processes
        self._jobs = jobs
        self._clients = clients

    async def run(self, scripts: Iterable[Script], done: Callable[[Result], None]) -> Counter[str]:
        """Play all scripts; `done` gets each result. Returns how often each row explained one."""
        matched: Counter[str] = Counter()
        waiting = iter(scripts)

        async def work() -> None:
            for script in waiting:
                result = await self.judged(script)
                matched.update({row.id for _, row in result.explained})
                done(result)

        await asyncio.gather(*[work() for _ in range(self._jobs)])
        gc.collect()
        return matched

    async def judged(self, script: Script) -> Result:
        """Play a script; what cannot be explained must be seen twice in three times."""
        evidence = await self.played(script)
        result = Result(script, evidence)
        open_findings = _sort(result, evidence)
        if not open_findings:
            return result
        seen: Counter[tuple[str, str]] = Counter({_key(one) for one in open_findings})
        for _ in range(self._repeats - 1):
            again = Result(script, await self.played(script))
            seen.update({_key(one) for one in _sort(again, again.evidence)})
        for finding in open_findings:
            # A rule that was broken once is broken.
            certain = finding.hard or seen[_key(finding)] > self._repeats // 2
            (result.unexplained if certain else result.unsteady).append(finding)
        return result

    async def played(self, script: Script) -> dict[str, Evidence]:
        """Play a script to all clients at once, each with a cluster of its own."""
        found = await asyncio.gather(*[self._played_to(script, name) for name in self._clients])
        return {one.client: one for one in found}

    async def _played_to(self, script: Script, name: str) -> Evidence:
        """Play a script to one client, again if its process ended: another script may have been
        the reason."""
        for _ in range(2):
            evidence = await play(script, name, self._client(name))
            if not evidence.gone:
                return evidence
            await self._processes[name].start()
        return await play(script, name, self._client(name))

    def _client(self, name: str) -> Client:
        return Ours() if name == OURS else Remote(self._processes[name])


def _key(finding: Finding) -> tuple[str, str]:
    return finding.client, finding.kind


def _sort(result: Result, evidence: dict[str, Evidence]) -> list[Finding]:
    """Enter the explained findings into the result; returns the others."""
    rest = []
    for finding in findings(evidence):
        row = next((row for row in ROWS if row.explains(finding, evidence)), None)
        if row is None:
            rest.append(finding)
        else:
            result.explained.append((finding, row))
    cause = next((row for _, row in result.explained if row.follows), None)
    if cause is None:
        return rest
    result.explained += [(finding, cause) for finding in rest if not finding.hard]
    return [finding for finding in rest if finding.hard]


@asynccontextmanager
async def campaign(
    jobs: int, clients: tuple[str, ...] = CLIENTS, repeats: int = 3
) -> AsyncIterator[Campaign]:
    """A campaign with its processes, which have done a little work already."""
    async with processes(clients) as running:
        made = Campaign(running, jobs, clients, repeats)
        for mode in MODES:
            steps: tuple[Step, ...] = (Send(0), Wait())
            if mode in ("tv1", "tv2"):
                steps = (Call("init"), Call("begin"), *steps, Call("end"))
            for _ in range(3):
                await made.played(Script("warm-up", "warm-up", mode, steps))
        yield made
