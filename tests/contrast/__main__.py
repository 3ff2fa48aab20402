"""Expose aiokprod, aiokafka and confluent-kafka to the same faults, and compare their behaviour.

python -m tests.contrast                                    all scenarios, all clients
python -m tests.contrast --scenarios too-large --clients aiokafka
python -m tests.contrast --report                           table of what --out holds
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.audit import Verdict, judge, read_log
from tests.chaos.cluster import ChaosCluster
from tests.contrast.broker import PARTITIONS, TOPIC, ScriptedBroker
from tests.contrast.clients import ACKNOWLEDGED, CLIENTS
from tests.contrast.scenarios import SCENARIOS, Scenario, Stage

BEFORE = 2.0
AFTER = 5.0
SPARE = 10.0
"""Seconds beyond the delivery timeout after which a record counts as hung."""


async def play(scenario: Scenario, client: str, cluster: ChaosCluster | None) -> dict[str, Any]:
    with ExitStack() as stack:
        broker = None if scenario.real else stack.enter_context(ScriptedBroker())
        topic = f"contrast-{uuid.uuid4().hex[:8]}" if scenario.real else TOPIC
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"topic": topic, **scenario.settings}
        if cluster is not None:
            await cluster.create_topic(topic, 3, configs=scenario.topic_config)
            settings["bootstrap"] = (
                cluster.proxied_servers if scenario.network else cluster.bootstrap_servers
            )
        elif broker is not None:
            settings["bootstrap"] = broker.bootstrap
        orders = {
            "client": client,
            "settings": settings,
            "rate": scenario.rate,
            "awaiting": scenario.awaiting,
            "patience_s": settings.get("delivery_s", 60.0) + SPARE,
            "result": str(folder / "told.npz"),
        }
        process = await _worker(orders)
        assert process.stdin is not None
        stage = Stage(topic, _teller(process), cluster, broker)
        try:
            await asyncio.sleep(BEFORE)
            await scenario.play(stage)
            ended = time.monotonic()
            await asyncio.sleep(AFTER)
            out, _ = await process.communicate(b"stop\n")
        finally:
            if process.returncode is None:
                process.kill()
        statistics = json.loads(out.splitlines()[-1])
        told = dict(np.load(orders["result"]))
        if cluster is not None:
            log = await asyncio.to_thread(read_log, cluster.bootstrap_servers, topic, bare=True)
            await cluster.delete_topic(topic)
        else:
            assert broker is not None
            log = broker.log()
        verdict = judge(log, 0, told, topic_made_at=stage.topic_made_at, partitions=PARTITIONS)
        late = told["handed"] > ended + 1.0
        after = told["state"][late] == ACKNOWLEDGED
    return {
        "client": client,
        **statistics,
        "silence_s": _unresponsive(told),
        "after": f"{np.count_nonzero(after)}/{len(after)}",
        "verdict": asdict(verdict),
    }


async def _worker(orders: dict[str, Any]) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.contrast.worker",
        json.dumps(orders),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    if line.strip() != b"ready":
        raise RuntimeError(f"{orders['client']} did not get ready: {line!r}")
    return process


def _teller(process: asyncio.subprocess.Process) -> Any:
    def tell(line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line.encode() + b"\n")

    return tell


def _unresponsive(told: dict[str, Any]) -> float:
    """Return the longest time without any acknowledgment, in seconds, or -1 with fewer than two."""
    acks = np.sort(told["settled"][told["state"] == ACKNOWLEDGED])
    return round(float(np.diff(acks).max()), 1) if len(acks) > 1 else -1.0


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| fault | client | records | failed | outcome told | lost | doubled | inverted | "
        "wrong offset | hung | in the log though failed | silence | afterwards | first error |",
        "|---|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for name, scenario in SCENARIOS.items():
        lines += [_row(scenario, result) for result in results if result["scenario"] == name]
    return "\n".join(lines)


def _row(scenario: Scenario, result: dict[str, Any]) -> str:
    verdict = Verdict(**result["verdict"])
    failed = result["failed"]
    told = "-" if not failed else f"{result['outcome_told']} ({verdict.rejected} not in the log)"
    if failed and not result["outcome_told"]:
        told = "none"
    error = next(iter(result["errors"]), "").replace("|", "/").replace("\n", " ")
    cells = [
        scenario.text,
        result["client"],
        result["records"],
        failed,
        told,
        verdict.lost,
        verdict.duplicates,
        verdict.inversions,
        verdict.wrong_offset,
        result["hung"],
        verdict.unknown_present + verdict.definite_but_present,
        f"{result['silence_s']} s",
        result["after"],
        error[:110],
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


async def contrast(chosen: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        cluster: ChaosCluster | None = None
        if any(SCENARIOS[name].real for name in chosen.scenarios):
            cluster = await stack.enter_async_context(ChaosCluster(chosen.nodes))
        for name in chosen.scenarios:
            scenario = SCENARIOS[name]
            for client in chosen.clients:
                try:
                    result = await play(scenario, client, cluster if scenario.real else None)
                except Exception as error:  # the remaining cases can still run
                    print(f"{name} was not played to {client}: {error!r}", flush=True)
                    continue
                result |= {"scenario": name, "nodes": chosen.nodes if scenario.real else 0}
                with chosen.out.open("a") as out:
                    out.write(json.dumps(result) + "\n")
                print(_row(scenario, result), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The same faults for three clients.")
    parser.add_argument("--scenarios", default="all", help=", ".join(SCENARIOS))
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--nodes", type=int, default=3, help="real brokers")
    parser.add_argument("--out", type=Path, default=Path("build/contrast.jsonl"))
    parser.add_argument("--report", action="store_true", help="only print the table of --out")
    chosen = parser.parse_args()
    every = list(SCENARIOS)
    chosen.scenarios = every if chosen.scenarios == "all" else chosen.scenarios.split(",")
    chosen.clients = chosen.clients.split(",")
    for names, known in ((chosen.scenarios, SCENARIOS), (chosen.clients, CLIENTS)):
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"not known: {unknown}; there are {', '.join(known)}")
    return chosen


def main() -> None:
    chosen = arguments()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    if not chosen.report:
        asyncio.run(contrast(chosen))
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for line in chosen.out.read_text().splitlines():
        result = json.loads(line)
        latest[result["scenario"], result["client"]] = result
    print(table(list(latest.values())))


if __name__ == "__main__":
    main()
