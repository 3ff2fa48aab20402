"""Kills broker processes and removes their folders when the process that owns them exits.

A test run that is killed cannot clean up. Therefore a small helper process holds the other end of a
pipe. When the owner exits for any reason, the pipe closes. The helper then kills the processes and
removes the folders that are still on its list.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO


def kill_group(pid: int) -> None:
    """Kills the process group led by `pid`, even if it is stopped. Does nothing if it does not
    exist."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class Reaper:
    """A list of process groups and folders that must not outlive this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def add_process(self, pid: int) -> None:
        self._tell(f"+{pid}")

    def forget_process(self, pid: int) -> None:
        """Removes a process from the list. Call this as soon as the process has ended, because the
        system may reuse its id."""
        self._tell(f"-{pid}")

    def add_folder(self, folder: Path) -> None:
        self._tell(f"/{folder}")

    def forget_folder(self, folder: Path) -> None:
        self._tell(f"\\{folder}")

    def close(self) -> None:
        """Makes the helper kill the listed processes and remove the listed folders. Waits until the
        helper exits."""
        with self._lock:
            if self._process.stdin is not None and not self._process.stdin.closed:
                self._process.stdin.close()
        self._process.wait(timeout=30)

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._process.stdin is not None and not self._process.stdin.closed:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()


def serve(orders: IO[str]) -> None:
    """Updates the list from `orders`. At the end of `orders`, kills the listed processes and
    removes the listed folders."""
    pids: set[int] = set()
    folders: set[str] = set()
    for line in orders:
        sign, what = line[0], line[1:].rstrip("\n")
        if sign == "+":
            pids.add(int(what))
        elif sign == "-":
            pids.discard(int(what))
        elif sign == "/":
            folders.add(what)
        elif sign == "\\":
            folders.discard(what)
    for pid in pids:
        kill_group(pid)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # Ignore Ctrl-C, which is meant for the owner. Only the end of the pipe stops this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin)
