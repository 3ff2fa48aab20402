"""The progress line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from aiokprod._cli.progress import ProgressLine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set the clock of the progress line. The only entry of the list is the time in seconds."""
    now = [100.0]
    monkeypatch.setattr("aiokprod._cli.progress.time.monotonic", lambda: now[0])
    return now


@contextmanager
def terminal_as_standard_error() -> Iterator[Callable[[], str]]:
    """Yield a function that returns the output since its last call."""
    reading, writing = os.openpty()
    with open(writing, "w") as terminal, redirect_stderr(terminal):

        def read() -> str:
            terminal.write("|")
            terminal.flush()
            text = b""
            while not text.endswith(b"|"):
                text += os.read(reading, 1024)
            return text[:-1].decode()

        yield read
    os.close(reading)


def test_a_line_has_rate_share_and_remaining_time(clock: list[float]) -> None:
    with terminal_as_standard_error() as shown:
        line = ProgressLine(40_000_000, quiet=False)
        clock[0] += 2
        line.show(20_000, 10_000_000)
        first = "20,000 records, 10,000 records/s, 5.0 MB/s, 25%, 6 s left"
        assert shown() == f"\r{first}"
        clock[0] += 0.1  # too early for an update
        line.show(30_000, 20_000_000)
        assert shown() == ""
        clock[0] += 1.9
        line.show(30_000, 20_000_000)
        second = "30,000 records, 7,500 records/s, 5.0 MB/s, 50%, 4 s left"
        assert shown() == "\r" + second.ljust(len(first))
        line.end()
        assert shown() == "\r" + " " * len(second) + "\r"
        line.end()
        assert shown() == ""


def test_without_a_total_there_is_no_remaining_time(clock: list[float]) -> None:
    with terminal_as_standard_error() as shown:
        line = ProgressLine(None, quiet=False)
        clock[0] += 1
        line.show(1, 1_000_000)
        assert shown() == "\r1 records, 1 records/s, 1.0 MB/s"


def test_a_quiet_run_writes_nothing(clock: list[float]) -> None:
    with terminal_as_standard_error() as shown:
        line = ProgressLine(10, quiet=True)
        clock[0] += 5
        line.show(1, 5)
        line.end()
        assert shown() == ""


def test_nothing_is_written_to_what_is_no_terminal(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    line = ProgressLine(10, quiet=False)
    clock[0] += 5
    line.show(1, 5)
    line.end()
    assert capsys.readouterr().err == ""
