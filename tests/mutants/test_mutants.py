"""The mutator: what it changes, what it leaves alone, and what a run makes of the results."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.operators import sites
from tests.mutants.plan import GROUPS, ROOT, sample
from tests.mutants.report import report

SOURCE = '''
import logging
logger = logging.getLogger(__name__)

class Limit:
    __slots__ = ("top",)

    def __repr__(self) -> str:
        return f"top={self.top + 1}"

    def take(self, a: int, b: int) -> int | None:
        logger.info("taking %d", a + b)
        if a < b and not self.top:
            self.top = max(a, b)
            return a - 1
        for i in (True, 7):
            continue
        return None
'''


def changed_lines(path: str, source: str) -> dict[str, set[str]]:
    """Kind of mutation -> what the lines that it changes read afterwards."""
    found: dict[str, set[str]] = {}
    for mutation in sites(path, source):
        after = mutation.apply(source.encode()).decode().splitlines()
        found.setdefault(mutation.kind, set()).add(after[mutation.line - 1].strip())
    return found


def test_python_operators_change_what_their_names_say() -> None:
    found = changed_lines("x.py", SOURCE)
    assert found == {
        "condition-negated": {"if (not (a < b and (not self.top))):"},
        "and-or": {"if (a < b or not self.top):"},
        "comparison": {"if (a <= b) and not self.top:"},
        "not-dropped": {"if a < b and (self.top):"},
        "statement-dropped": {"pass"},
        "arguments-swapped": {"self.top = (max(b, a))"},
        "plus-minus": {"return (a + 1)"},
        "constant": {"return a - 0", "for i in (False, 7):", "for i in (True, 15):"},
        "return-none": {"return None"},
        "jump-dropped": {"pass"},
    }


def test_python_text_for_people_is_left_alone() -> None:
    lines = {mutation.original for mutation in sites("x.py", SOURCE)}
    assert not any("logger" in line or "__slots__" in line or "top={" in line for line in lines)


def test_cython_operators_change_code_and_no_declarations() -> None:
    source = '''
cdef class Core:
    """True and 1 == 1."""
    cdef int size

    cdef int put(self, char *at,
                 int room) except -1:
        # 1 == 1
        if room < 0 and self.size is not None:
            raise ValueError("not 0")
        self.size += 1
        memcpy(at, <char *>self.data, room - 1)
        return 0
'''
    found = changed_lines("x.pyx", source)
    assert found["comparison"] == {
        "if room <= 0 and self.size is not None:",
        "if room < 0 and self.size is None:",
    }
    assert found["statement-dropped"] == {"pass"}
    assert found["plus-minus"] == {
        "self.size -= 1",
        "memcpy(at, <char *>self.data, room + 1)",
    }
    assert {m.scope for m in sites("x.pyx", source)} == {"Core.put"}
    touched = {m.original for m in sites("x.pyx", source)}
    assert not any(line.startswith(("cdef", "#", "raise", '"""')) for line in touched)


def test_every_python_mutant_of_the_package_parses_and_has_a_key_of_its_own() -> None:
    path = "aiokprod/engine/accumulator.py"
    source = (ROOT / path).read_text()
    mutants = sites(path, source)
    assert len(mutants) > 300
    assert len({mutant.key for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        after = mutant.apply(source.encode())
        ast.parse(after)
        assert after != source.encode()


def test_sample_is_the_same_for_the_same_seed_and_keeps_the_shares() -> None:
    first = sample(100, 3)
    assert [m for _, m in first] == [m for _, m in sample(100, 3)]
    assert [m for _, m in first] != [m for _, m in sample(100, 4)]
    counts = {group.name: sum(g is group for g, _ in first) for group in GROUPS}
    assert counts == {group.name: group.share for group in GROUPS}


def entry(result: str, key: str = "a") -> dict[str, Any]:
    return {"group": "net", "result": result, "key": key, "text": "pass", "tests": 3}


@pytest.mark.parametrize(
    ("results", "known", "good"),
    [
        ([entry("killed")] * 19 + [entry("survived")], {"a": "equivalent"}, True),
        ([entry("hung")] * 19 + [entry("survived")], {"a": "equivalent"}, True),
        ([entry("killed")] * 19 + [entry("survived")], {}, False),
        ([entry("killed")] * 18 + [entry("survived")] * 2, {"a": "equivalent"}, False),
        ([entry("killed"), entry("invalid")], {}, True),
        ([entry("invalid")], {}, False),
        ([], {}, False),
    ],
)
def test_run_is_good_if_enough_are_noticed_and_survivors_have_reasons(
    results: list[dict[str, Any]], known: dict[str, str], good: bool
) -> None:
    text, verdict = report(results, known)
    assert verdict is good
    assert ("NO REASON" in text) is (entry("survived") in results and not known)


def test_reasons_belong_to_mutants_that_exist() -> None:
    """A reason for a line that changed excuses nothing any more and has to go."""
    from tests.mutants.report import reasons

    keys: dict[str, set[str]] = {}
    for key in reasons():
        path = key.split(" | ")[0]
        if path not in keys:
            source = (ROOT / path).read_text()
            keys[path] = {mutant.key for mutant in sites(path, source)}
        assert key in keys[path], key
    assert Path(ROOT / "aiokprod").is_dir()
