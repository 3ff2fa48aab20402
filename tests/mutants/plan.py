"""The mutated modules, their shares, and the tests of each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final

from tests.mutants.operators import Mutation, sites

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Group:
    """Modules that are sampled together.

    Attributes:
        name: name in the report.
        patterns: files, relative to the repository.
        left_out: files of `patterns` that belong to another group.
        share: number of mutants per hundred.
        own: folders whose tests run in full where no map by lines exists (Cython).
        wider: commands for a mutant that survived the tests of its lines.
    """

    name: str
    patterns: tuple[str, ...]
    left_out: tuple[str, ...]
    share: int
    own: tuple[str, ...]
    wider: tuple[tuple[str, ...], ...]


SPARK_TESTS: Final = {
    "aiokprod/spark/audit_jobs.py": "tests/spark/integration/test_audit_jobs.py",
}
"""Modules whose code only Spark can run, with their test file (PySpark and Java, no broker).

Their mutants are tested with that file in addition to the tests of the map, which lacks it: see
`trial.Bench`.
"""

SEEDS: Final = ("-m", "tests.simulation", "--jobs", "1", "--seeds")
_SIMULATION: Final = ((*SEEDS, "0-60"),)

_CLIENT: Final = (
    "aiokprod/*.py",
    "aiokprod/_client/*.py",
    "aiokprod/_config/*.py",
    "aiokprod/_security/*.py",
)

GROUPS: Final = (
    Group(
        "engine",
        ("aiokprod/_engine/*.py", "aiokprod/_engine/*/*.py"),
        ("transaction*", "coordinators.py"),
        30,
        (),
        _SIMULATION,
    ),
    Group(
        "transactions",
        (
            "aiokprod/_engine/identity/transaction*.py",
            "aiokprod/_engine/identity/coordinators.py",
        ),
        (),
        12,
        (),
        (),
    ),
    Group("net", ("aiokprod/_net/*.py", "aiokprod/_net/sasl/*.py"), (), 20, (), _SIMULATION),
    Group("client side", _CLIENT, ("__init__.py", "_version.py"), 16, (), _SIMULATION),
    Group("spark", ("aiokprod/spark/*.py",), (), 8, (), ()),
    Group(
        "compiled core",
        (
            "aiokprod/*.pyx",
            "aiokprod/_core/*.pyx",
            "aiokprod/_arrow/*.pyx",
            "aiokprod/_wire/*.pyx",
            "aiokprod/_engine/*.pyx",
            "aiokprod/spark/*.pyx",
        ),
        (),
        14,
        (
            "tests/core",
            "tests/arrow",
            "tests/wire",
            "tests/spark",
            "tests/foundation",
            "tests/engine",
        ),
        _SIMULATION,
    ),
)


def sample(
    count: int, seed: int, groups: tuple[Group, ...] = GROUPS
) -> list[tuple[Group, Mutation]]:
    """Choose `count` mutants by the shares of the groups, in random order; always the same for a
    seed.

    Within a group every site has the same probability, so large modules get more mutants. Each site
    has a fixed rank: a change of the code replaces the mutants of the changed lines and a few more,
    so that most results for unchanged files can be reused.
    """
    total = sum(group.share for group in groups)
    chosen: list[tuple[str, Group, Mutation]] = []
    for group in groups:
        found = [
            (_rank(seed, mutation), group, mutation)
            for pattern in group.patterns
            for path in sorted(ROOT.glob(pattern))
            if not any(path.match(other) for other in group.left_out)
            for mutation in sites(path.relative_to(ROOT).as_posix(), path.read_text())
        ]
        found.sort(key=itemgetter(0))
        chosen += found[: round(count * group.share / total)]
    chosen.sort(key=itemgetter(0))
    return [(group, mutation) for _, group, mutation in chosen]


def _rank(seed: int, mutation: Mutation) -> str:
    return hashlib.sha256(f"{seed} {mutation.key} {mutation.text}".encode()).hexdigest()
