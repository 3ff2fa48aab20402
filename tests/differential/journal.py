"""A file with the clients' evidence: an interrupted campaign resumes, and changed rules or a
changed table of differences are applied to earlier runs."""

from __future__ import annotations

import hashlib
import os
import pickle
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.differential.clients import OURS
from tests.differential.script import Script
from tests.differential.stage import Evidence

ROOT: Final = Path(__file__).parents[2]
PATH: Final = ROOT / ".cache" / "differential.journal"
_STAGE: Final = ("aiokprod/testing/fake_cluster", "aiokprod/_wire", "tests/differential")
_JUDGE: Final = frozenset(
    {
        "__main__.py",
        "campaign.py",
        "catalogue.py",
        "detection.py",
        "differences.py",
        "generator.py",
        "journal.py",
        "judge.py",
        "test_journal.py",
        "test_comparison.py",
    }
)
"""Modules of tests/differential that affect neither what a client receives nor what is recorded."""


def stage_digest() -> str:
    """Return a digest of the code that plays scripts: the fake cluster, the stage and the
    harnesses."""
    return _digest(
        path
        for path in _sources(*_STAGE)
        if not (path.parent.name == "differential" and path.name in _JUDGE)
    )


def producer_digest() -> str:
    """Return a digest of aiokprod without its test doubles."""
    return _digest(path for path in _sources("aiokprod") if "testing" not in path.parts)


def _sources(*folders: str) -> Iterable[Path]:
    for folder in folders:
        yield from (ROOT / folder).rglob("*")


def _digest(paths: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(paths):
        if path.suffix in (".py", ".pyx", ".pxd", ".java"):
            found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


class Journal:
    """Evidence by script, client and number of the play.

    Evidence of other clients is valid for the same stage. Evidence of aiokprod is also bound to the
    same sources, unless `older` is set.

    Args:
        older: evidence of aiokprod from other sources is valid too.
        replay: store evidence, but use none.
        digests: digests of the stage and of aiokprod; computed if not given.
    """

    def __init__(
        self,
        path: Path = PATH,
        *,
        older: bool = False,
        replay: bool = False,
        digests: tuple[str, str] | None = None,
    ) -> None:
        self._stage, self._producer = digests or (stage_digest(), producer_digest())
        self._found: dict[bytes, bytes] = {}
        self._replay = replay
        self._seconds: dict[str, float] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, self._read(path, older))
        self._path = path

    def _read(self, path: Path, older: bool) -> int:
        """Load the valid entries and return the length of all complete entries."""
        complete = 0
        with path.open("rb") as file:
            while True:
                try:
                    key, producer, value = pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    return complete  # a killed process wrote the last entry only partly
                complete = file.tell()
                if isinstance(value, float):
                    self._seconds[key] = self._seconds.get(key, 0.0) + value
                elif older or producer in ("", self._producer):
                    self._found[key] = value

    def _key(self, script: Script, client: str, play: int) -> bytes:
        text = f"{self._stage}\0{script!r}\0{client}\0{play}"
        return hashlib.sha256(text.encode()).digest()

    def get(self, script: Script, client: str, play: int) -> Evidence | None:
        """Return what the client did in the script, or None if that is not stored."""
        found = self._found.get(self._key(script, client, play))
        if found is None or self._replay:
            return None
        evidence: Evidence = pickle.loads(zlib.decompress(found))
        return evidence

    def put(self, script: Script, play: int, evidence: Evidence) -> None:
        """Store the evidence of a client."""
        key = self._key(script, evidence.client, play)
        for sent in evidence.sent:
            sent.waits = None
        value = zlib.compress(pickle.dumps(evidence))
        self._found[key] = value
        self._write(key, self._producer if evidence.client == OURS else "", value)

    def add_seconds(self, run: str, seconds: float) -> float:
        """Add to the duration of a run and return the sum of all its parts."""
        self._seconds[run] = self._seconds.get(run, 0.0) + seconds
        self._write(run, "", seconds)
        return self._seconds[run]

    def _write(self, key: object, producer: str, value: object) -> None:
        with self._path.open("ab") as file:
            file.write(pickle.dumps((key, producer, value)))
