"""Runs many seeds on several cores."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import traceback
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.exemptions import MOST_SEEDS
from tests.simulation.run import Report, run_seed
from tests.simulation.seeds import RARE_FAULTS

CHUNK = 40
"""Number of seeds that a process gets at a time."""


EXAMPLES = 5
MANY = 1_000
"""Minimum number of seeds for which shares of them are judged."""
LEAST_SHARE = 0.03
"""Minimum share of the seeds that must have each rare fault."""


@dataclass
class Totals:
    """The sum of all reports.

    Attributes:
        faults, fault_seeds: how often each fault happened, and in how many seeds.
        exemptions, mild_seeds: how often each exemption was needed, and in how many seeds.
        mild_at: some of these seeds.
    """

    seeds: int = 0
    records: int = 0
    acknowledged: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    fault_seeds: Counter[str] = field(default_factory=Counter)
    exemptions: Counter[str] = field(default_factory=Counter)
    mild_seeds: Counter[str] = field(default_factory=Counter)
    hash: int = 0
    mild_at: dict[str, list[int]] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, found: Report | str) -> None:
        """Add one seed: its report, or the text of its failure."""
        self.seeds += 1
        if isinstance(found, str):
            self.broken[seed] = found
            return
        self.records += found.records
        self.acknowledged += found.acknowledged
        self.virtual_s += found.virtual_s
        self.faults.update(found.faults)
        self.fault_seeds.update(set(found.faults))
        self.exemptions.update(found.exemptions)
        self.mild_seeds.update(list(found.exemptions))
        for name in found.exemptions:
            examples = self.mild_at.setdefault(name, [])
            if len(examples) < EXAMPLES:
                examples.append(seed)
        # The result does not depend on the order in which seeds end.
        self.hash ^= found.trace * (2 * seed + 1) % 2**64

    def merge(self, other: Totals) -> None:
        """Add the sum of other seeds."""
        self.seeds += other.seeds
        self.records += other.records
        self.acknowledged += other.acknowledged
        self.virtual_s += other.virtual_s
        self.faults.update(other.faults)
        self.fault_seeds.update(other.fault_seeds)
        self.exemptions.update(other.exemptions)
        self.mild_seeds.update(other.mild_seeds)
        self.hash ^= other.hash
        for name, seeds in other.mild_at.items():
            examples = self.mild_at.setdefault(name, [])
            examples += seeds[: EXAMPLES - len(examples)]
        self.broken.update(other.broken)

    def to_json(self) -> dict[str, Any]:
        """Return the form that `from_json` reads."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Totals:
        """What `to_json` gave, after a way through JSON."""
        names = "faults", "fault_seeds", "exemptions", "mild_seeds"
        counters = {name: Counter(fields[name]) for name in names}
        broken = {int(seed): text for seed, text in fields["broken"].items()}
        return cls(**{**fields, **counters, "broken": broken})

    def too_mild(self) -> list[str]:
        """Return the exemptions that more seeds needed than allowed, if there are `MANY` seeds."""
        if self.seeds < MANY:
            return []
        return [n for n, most in MOST_SEEDS.items() if self.mild_seeds[n] > most * self.seeds]

    def too_rare(self) -> list[str]:
        """Return the rare faults that happened in too few seeds, if there are `MANY` seeds."""
        if self.seeds < MANY:
            return []
        return [n for n in RARE_FAULTS if self.fault_seeds[n] < LEAST_SHARE * self.seeds]


def outcome_of(seed: int) -> tuple[int, Report | str]:
    """Return a seed and its report, or the text of its failure."""
    try:
        return seed, run_seed(seed)
    except Exception:
        return seed, traceback.format_exc(limit=-6)


def run_chunk(seeds: list[int]) -> list[tuple[int, Report | str]]:
    """Run some seeds sequentially. Garbage is collected only between seeds, so that each seed is
    charged only for its own garbage, and objects that existed before are not traversed again."""
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    gc.freeze()
    found = []
    try:
        for seed in seeds:
            found.append(outcome_of(seed))
            gc.collect()
    finally:
        if not was_frozen:  # `unfreeze` would also unfreeze the objects that the caller froze
            gc.unfreeze()
        if was_enabled:
            gc.enable()
    return found


def outcomes(seeds: Iterable[int], jobs: int) -> Iterator[tuple[int, Report | str]]:
    """Yield the outcomes of all seeds as they complete."""
    wanted = list(seeds)
    chunks = [wanted[start : start + CHUNK] for start in range(0, len(wanted), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield from run_chunk(chunk)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap_unordered(run_chunk, chunks):
            yield from found


class Journal:
    """A journal of the complete slices, one JSON line each, so that a long run can resume after an
    interruption. Lines of another version of the code are ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._code = fingerprint()
        self._known: dict[tuple[int, int], tuple[Totals, float]] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # truncated when the run was stopped
            if entry["code"] == self._code:
                totals = Totals.from_json(entry["totals"])
                self._known[entry["first"], entry["last"]] = totals, entry["seconds"]

    def find(self, seeds: range) -> tuple[Totals, float] | None:
        """Return the totals of a slice and the seconds it took, or None if it is not in the
        journal."""
        return self._known.get((seeds.start, seeds.stop))

    def add(self, seeds: range, totals: Totals, seconds: float) -> None:
        """Store a complete slice."""
        entry = {
            "code": self._code, "first": seeds.start, "last": seeds.stop, "seconds": seconds,
            "totals": totals.to_json(),
        }  # fmt: skip
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def fingerprint() -> int:
    """Return a checksum over the sources of the package and of the simulation."""
    root = Path(__file__).parents[2]
    checksum = 0
    for folder in ("aiokprod", "tests/simulation"):
        for path in sorted((root / folder).rglob("*.py*")):
            if path.suffix in (".py", ".pyx", ".pxd"):
                checksum = zlib.crc32(path.read_bytes(), zlib.crc32(path.name.encode(), checksum))
    return checksum


def slices(seeds: range, size: int) -> list[range]:
    """Return consecutive parts of a range, cut at multiples of `size` regardless of the start."""
    cuts = range(seeds.start // size * size + size, seeds.stop, size)
    bounds = [seeds.start, *cuts, seeds.stop]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


def parsed(text: str) -> range:
    """ "a-b" without b, or a single seed."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or int(first) + 1))
