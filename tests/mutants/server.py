"""A process that imports what tests need besides the package, and forks one child per command.

Run it in the tree whose tests it runs: `python -m tests.mutants.server`. It reads one JSON object
per line from standard input (the fields of `Command`) and responds with another (those of `Ended`).
Only the child imports the package and its tests, so every child reads the current files.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

PRELOADED: Final = (
    "asyncio", "concurrent.futures", "cramjam", "crc32c", "cryptography.x509",
    "hypothesis.stateful", "hypothesis.strategies", "jwt", "lz4.frame", "multiprocessing", "numpy",
    "pyarrow", "pytest", "ssl", "unittest.mock", "uvloop", "xdist.plugin", "zstandard",
)  # fmt: skip
"""Modules imported once. None of them imports the package or starts a thread."""
_POLL_S: Final = 0.05
_LOOK_S: Final = 1.0
"""Seconds between two checks of the child's end and of its used time."""


@dataclass(frozen=True)
class Command:
    """The command of a child.

    Attributes:
        arguments: arguments of the interpreter: ("-m", module, ...).
        output: file for its standard output and error output.
        cpu: seconds of CPU time after which it counts as hung: wall time would depend on the load.
        idle: seconds without CPU time after which it counts as hung.
        coverage: file for the executed lines, or "" to measure none.
        bytecode: whether it may write compiled modules.
        environment: variables added to those of the server.
    """

    arguments: Sequence[str]
    output: str
    cpu: int = 600
    idle: float = 60.0
    coverage: str = ""
    bytecode: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """The result of a child.

    Attributes:
        status: exit status, negative for a signal.
        hung: it used up its CPU time, or used none for too long.
        cpu: seconds of CPU time, including its children.
    """

    status: int
    hung: bool
    cpu: float


class Server:
    """Client side of the process in a tree. It runs one command at a time."""

    def __init__(self, tree: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".hypothesis"),
            "OPENBLAS_NUM_THREADS": "1",  # its threads would not survive the fork
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.server"], cwd=tree, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, command: Command) -> Ended:
        """Run a command and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(command)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the server of the tests ended: {self._process.wait()}")
        return Ended(**json.loads(answer))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve() -> None:
    """Execute commands until standard input ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    if "aiokprod" in sys.modules:
        raise RuntimeError("a preloaded module imported the package: mutants would have no effect")
    parent = os.getppid()
    for line in sys.stdin:
        command = Command(**json.loads(line))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child = os.fork()
        if child == 0:
            _work(command)
        status, hung = _watch(child, command.idle, parent)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps(asdict(Ended(status, hung, cpu))), flush=True)


def _watch(child: int, idle: float, parent: int) -> tuple[int, bool]:
    """Wait for the child and end its remaining processes. Return its exit status, and whether it
    hung.

    End the child and this process if the process `parent` has ended.
    """
    ticks, since, idled = -1, time.monotonic(), False
    looked = since
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        now = time.monotonic()
        if now - looked >= _LOOK_S:
            looked = now
            if os.getppid() != parent:
                _kill(child)
                sys.exit("the process that asked has ended")
            used = _ticks(child)
            if used != ticks:
                ticks, since = used, now
            elif now - since > idle and not idled:
                idled = True
                _kill(child)
        time.sleep(_POLL_S)
    _kill(child)
    code = os.waitstatus_to_exitcode(status)
    return code, idled or code == -signal.SIGXCPU


def _ticks(leader: int) -> int:
    """Return the CPU time of the processes of a session in clock ticks. A process that is ready but
    not scheduled counts as running."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    total += int(fields[11]) + int(fields[12])
                    total += time.monotonic_ns() if fields[0] in "RD" else 0
    return total


def _kill(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _work(command: Command) -> None:
    """Run the command in the child process; never returns."""
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (command.cpu, command.cpu + 5))
        sink = os.open(command.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.environ.update(command.environment)
        sys.dont_write_bytecode = not command.bytecode
        if not command.bytecode:
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        found = importlib.util.find_spec("aiokprod")
        if found is None or not str(found.origin).startswith(os.getcwd() + os.sep):
            raise RuntimeError(f"the package is not that of the tree: {found}")
        status = _measured(command) if command.coverage else _run(command.arguments)
    except SystemExit as ended:
        status = _code(ended.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run(arguments: Sequence[str]) -> int:
    _, module, *rest = arguments
    if module == "pytest":
        import pytest

        # The warning says that preloaded modules, mainly hypothesis, keep plain asserts.
        return int(pytest.main(["-W", "ignore::pytest.PytestAssertRewriteWarning", *rest]))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _measured(command: Command) -> int:
    import coverage

    measured = coverage.Coverage(
        data_file=command.coverage, source=["aiokprod"], omit=["aiokprod/testing/*"],
        config_file=False,
    )  # fmt: skip
    measured.start()
    try:
        return _run(command.arguments)
    finally:
        measured.stop()
        measured.save()


def _code(code: object) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else 1


if __name__ == "__main__":
    serve()
