"""Runs cases alternately, each in a separate process, and counts the records in the log."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.brokers import Brokers
from benchmarks.case import Case
from benchmarks.summary import Summary, summarise

WORKER_TIMEOUT: Final = 400.0
PATIENCE = 5.0
"""Seconds to wait until unacknowledged records (acks=0) arrive."""

Worker = Callable[[Mapping[str, Any]], dict[str, Any]]


class RecordsMissing(RuntimeError):
    """The number of records in the log differs from the number that a run reported, so that the run
    has no rate."""


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that are compared with each other and therefore run alternately.

    Attributes:
        cases: cases by label.
        runs: number of runs of each case.
    """

    name: str
    title: str
    cases: Mapping[str, Case]
    runs: int = 3


def in_process(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run `benchmarks.worker` in a process. Raises RuntimeError with its output if it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(job)],
            capture_output=True,
            text=True,
            timeout=WORKER_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"not done after {WORKER_TIMEOUT:.0f} s: {job['case']}") from error
    if done.returncode != 0:
        raise RuntimeError(f"{job['case']} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_case(
    brokers: Brokers, case: Case, *, cpu: int | None = None, worker: Worker = in_process
) -> dict[str, Any]:
    """Run a case on a new topic and verify the number of records.

    Raises RecordsMissing if the end offsets differ from the number of records that the worker
    reported. With acks=0, no record is acknowledged, so the figures use the records in the log.
    """
    with brokers.topic(case) as topic:
        job = {"servers": brokers.servers, "topic": topic, "case": case.to_json(), "cpu": cpu}
        used = brokers.cpu_seconds()
        result = worker(job)
        expected = result["count"] + result["warm_up"]
        found = _count(brokers, topic, expected, patience_s=PATIENCE if case.acks == "0" else 0.0)
        if found != expected and case.acks != "0":
            raise RecordsMissing(
                f"{case.client}, {case.scenario}: {expected} records acknowledged, {found} in the "
                "topic by its end offsets"
            )
        now = brokers.cpu_seconds()
        if used is not None and now is not None and found:
            result["brokers_us"] = (now - used) / found * 1e6
        result["count"] += found - expected
        return result


def _count(brokers: Brokers, topic: str, expected: int, patience_s: float) -> int:
    """Return the number of records in the topic. Wait for records that may arrive later, because
    they were not acknowledged."""
    give_up = time.monotonic() + patience_s
    while (found := brokers.count(topic)) < expected and time.monotonic() < give_up:
        time.sleep(0.1)
    return found


def run_group(
    brokers: Brokers,
    group: Group,
    *,
    runs: int | None = None,
    cpu: int | None = None,
    worker: Worker = in_process,
    tell: Callable[[str], object] = lambda text: None,
) -> list[Summary]:
    """Run all cases of a group alternately. Each round begins with another case.

    If a run of another client fails, the failure is reported and the group continues. If a run of
    aiokprod fails, the group ends with that error.
    """
    labels = list(group.cases)
    results: dict[str, list[dict[str, Any]]] = {label: [] for label in labels}
    notes: dict[str, str] = {}
    total = runs or group.runs
    for number in range(total):
        turn = number % len(labels)
        for label in labels[turn:] + labels[:turn]:
            tell(f"{group.name}, run {number + 1} of {total}: {label}")
            case = group.cases[label]
            try:
                results[label].append(run_case(brokers, case, cpu=cpu, worker=worker))
            except RuntimeError as error:
                if case.client.startswith("aiokprod"):
                    raise
                notes[label] = last_line(error)
                tell(f"{group.name}: {label} failed: {notes[label]}")
    return [
        summarise(group.name, label, group.cases[label], results[label], notes.get(label, ""))
        for label in labels
    ]


def last_line(error: Exception) -> str:
    """Return the last line of a traceback, which names the error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


def warm_up_brokers(brokers: Brokers, cases: Sequence[Case], worker: Worker = in_process) -> None:
    """Warm up the brokers by runs that do not count, because new JVMs are several times slower."""
    for case in cases:
        run_case(brokers, case, worker=worker)
