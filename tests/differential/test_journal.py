"""Evidence is reused only for the sources it was recorded with."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.differential.clients import JAVA, OURS
from tests.differential.journal import Journal
from tests.differential.script import ProduceCode, Script, Send
from tests.differential.stage import Evidence

SCRIPT = Script("s", "f", "idempotent", (Send(0, 2),))
NOW = ("stage", "producer")


def journal(path: Path, digests: tuple[str, str] = NOW, **options: Any) -> Journal:
    return Journal(path, digests=digests, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a journal with the first play of both clients."""
    written = journal(tmp_path / "journal")
    for client in (OURS, JAVA):
        written.put(SCRIPT, 0, Evidence(client, SCRIPT, fresh_tries=3))
    return tmp_path / "journal"


@pytest.mark.parametrize(
    ("digests", "known"),
    [
        (NOW, {OURS, JAVA}),
        (("stage", "other producer"), {JAVA}),
        (("other stage", "producer"), set()),
    ],
)
def test_evidence_holds_for_the_sources_that_made_it(
    path: Path, digests: tuple[str, str], known: set[Any] | set[str]
) -> None:
    read = journal(path, digests)
    assert {one for one in (OURS, JAVA) if read.get(SCRIPT, one, 0)} == known


def test_evidence_of_older_sources_counts_if_asked_for(path: Path) -> None:
    found = journal(path, ("stage", "other producer"), older=True).get(SCRIPT, OURS, 0)
    assert found == Evidence(OURS, SCRIPT, fresh_tries=3)


def test_evidence_of_another_script_or_play_is_none(path: Path) -> None:
    read = journal(path)
    assert read.get(SCRIPT, OURS, 1) is None
    changed = Script("s", "f", "idempotent", (ProduceCode(6), Send(0, 2)))
    assert read.get(changed, OURS, 0) is None


def test_replay_uses_nothing_and_replaces_what_was_there(path: Path) -> None:
    replayed = journal(path, replay=True)
    assert replayed.get(SCRIPT, OURS, 0) is None
    replayed.put(SCRIPT, 0, Evidence(OURS, SCRIPT, fresh_tries=1))
    found = journal(path).get(SCRIPT, OURS, 0)
    assert found is not None
    assert found.fresh_tries == 1


def test_entry_that_was_cut_off_is_overwritten(path: Path) -> None:
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(pickle.dumps((b"key", "producer", b"value" * 100))[:-7])
    read = journal(path)
    assert path.stat().st_size == whole
    assert read.get(SCRIPT, OURS, 0)
    assert read.get(SCRIPT, JAVA, 0)
    read.put(SCRIPT, 1, Evidence(OURS, SCRIPT))
    assert journal(path).get(SCRIPT, OURS, 1)


def test_seconds_of_interrupted_runs_add_up(path: Path) -> None:
    assert journal(path).add_seconds("catalogue", 2.5) == 2.5
    assert journal(path).add_seconds("catalogue", 4.0) == 6.5
    assert journal(path).add_seconds("generated", 1.0) == 1.0
