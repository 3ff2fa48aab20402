"""The line of progress."""

from __future__ import annotations

import sys

import pytest

from aiokprod._cli.progress import ProgressLine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, seconds, in its only entry."""
    now = [100.0]
    monkeypatch.setattr("aiokprod._cli.progress.time.monotonic", lambda: now[0])
    return now


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


def test_a_line_has_rate_share_and_remaining_time(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch)
    line = ProgressLine(40_000_000, quiet=False)
    clock[0] += 2
    line.show(20_000, 10_000_000)
    first = "20,000 records, 10,000 records/s, 5.0 MB/s, 25%, 6 s left"
    assert capsys.readouterr().err == f"\r{first}"
    clock[0] += 0.1  # too early for an update
    line.show(30_000, 20_000_000)
    assert capsys.readouterr().err == ""
    clock[0] += 1.9
    line.show(30_000, 20_000_000)
    second = "30,000 records, 7,500 records/s, 5.0 MB/s, 50%, 4 s left"
    assert capsys.readouterr().err == "\r" + second.ljust(len(first))
    line.end()
    assert capsys.readouterr().err == "\r" + " " * len(second) + "\r"
    line.end()
    assert capsys.readouterr().err == ""


def test_without_a_total_there_is_no_remaining_time(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch)
    line = ProgressLine(None, quiet=False)
    clock[0] += 1
    line.show(1, 1_000_000)
    assert capsys.readouterr().err == "\r1 records, 1 records/s, 1.0 MB/s"


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "not a terminal"])
def test_nothing_is_written_where_nobody_reads_it(
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quiet: bool,
) -> None:
    if quiet:
        on_terminal(monkeypatch)
    line = ProgressLine(10, quiet=quiet)
    clock[0] += 5
    line.show(1, 5)
    line.end()
    assert capsys.readouterr().err == ""
