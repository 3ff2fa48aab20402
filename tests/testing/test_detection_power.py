"""The simulation finds bugs that are put back into the engine. This is the quick part of `python -m
tests.detection`, which searches for all bugs."""

from __future__ import annotations

import pytest

from aiokprod._engine.metadata.schedule import UpdateSchedule
from tests.detection.bugs import BUGS
from tests.detection.search import put_back, search, verdict_on

pytestmark = pytest.mark.matrix

QUICK = (
    "concurrent-batches-share-a-sequence",
    "disconnect-called-definite",
    "expired-in-flight-batch-gives-its-sequence-back",
    "half-frame-kept-after-a-reset",
    "leader-errors-fetch-no-metadata",
    "memory-of-failed-batches-never-returned",
    "missing-partition-hangs",
    "one-omission-is-a-verdict",
    "out-of-order-sequence-wedges-the-producer",
    "producer-ids-asked-for-without-backoff",
    "retry-goes-to-the-end-of-the-queue",
    "retry-takes-a-new-sequence",
    "server-error-called-definite",
    "versions-remembered-over-reconnects",
)
"""Bugs that appear within a few seeds."""

MOST = 80


@pytest.mark.parametrize("name", QUICK)
def test_bug_put_back_is_found(name: str) -> None:
    found = search(name, first=0, most=MOST, sample=0)
    assert found.seed is not None, f"{name} survived {MOST} seeds"
    assert verdict_on(found.seed) is None, "without the bug the seed is fine"


@pytest.mark.parametrize("name", BUGS)
def test_bug_fits_the_engine_as_it_is(name: str) -> None:
    """The replacement of the bug must still match the engine's calls."""
    with pytest.MonkeyPatch.context() as patch:
        put_back(name, patch)


def test_bug_that_does_not_fit_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        BUGS,
        "stale",
        lambda patch: patch.setattr(UpdateSchedule, "_ended", lambda self, now: None),
    )
    with pytest.raises(TypeError, match="mend the bug"), pytest.MonkeyPatch.context() as patch:
        put_back("stale", patch)


def test_catalogue_has_the_bugs_of_the_twelve_lessons() -> None:
    assert len(BUGS) >= 25
    assert set(QUICK) <= set(BUGS)
    assert all(function.__doc__ for function in BUGS.values())
