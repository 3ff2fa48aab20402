"""Three clients with one interface: commands in order, and a `Report` for each."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import KafkaError, KafkaTimeout
from aiokprod.producer import Producer
from aiokprod.testing.kafka_artifacts import KAFKA_4, MissingTool, class_path, find_java

OURS, JAVA, LIBRDKAFKA = "aiokprod", "java", "librdkafka"
CLIENTS: Final = (OURS, JAVA, LIBRDKAFKA)

TIMEOUT: Final = "timeout"
HUNG: Final = "hung"
GONE: Final = "gone"
"""Label of calls whose process ended."""
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class Report:
    """The result of a call.

    Attributes:
        partition, offset: place of an acknowledged record; -1 if not reported.
        label: "" for success, else "timeout", "code N" or the error's class. Clients are compared
            by it.
        error, message: class and text of the error.
        outcome: aiokprod only: not_sent, rejected or unknown.
        fatal: librdkafka only: the producer can no longer be used.
    """

    partition: int = -1
    offset: int = -1
    label: str = ""
    error: str = ""
    message: str = ""
    outcome: str | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if the call succeeded."""
        return not self.label

    def __str__(self) -> str:
        if self.ok:
            return f"ok@{self.offset}" if self.offset >= 0 else "ok"
        outcome = f"/{self.outcome}" if self.outcome else ""
        return f"{self.label}{outcome} ({self.error}: {self.message[:110]})"


class Client(ABC):
    """A producer. Commands run in the order of their `begin` calls."""

    @abstractmethod
    def begin(self, command: str, *arguments: str) -> asyncio.Future[Report]:
        """Begin a command of `Harness.java`; the result is its report."""

    async def call(self, command: str, *arguments: str) -> Report:
        """Begin a command and wait for its report."""
        return await self.begin(command, *arguments)


# -- ours -----------------------------------------------------------------------------------------


class Ours(Client):
    """An aiokprod producer on the event loop of the brokers.

    Args:
        environment: environment of a cluster in memory; None: TCP.
    """

    def __init__(self, environment: Environment | None = None) -> None:
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._producer: Producer[bytes, bytes]
        self._commands: asyncio.Queue[tuple[str, tuple[str, ...], asyncio.Future[Report]] | None]
        self._commands = asyncio.Queue()
        self._worker = self._loop.create_task(self._work())
        self._deliveries: set[asyncio.Task[None]] = set()

    def begin(self, command: str, *arguments: str) -> asyncio.Future[Report]:
        future: asyncio.Future[Report] = self._loop.create_future()
        self._commands.put_nowait((command, arguments, future))
        return future

    async def _work(self) -> None:
        while True:
            item = await self._commands.get()
            if item is None:
                return
            command, arguments, future = item
            try:
                if command == "send":
                    topic, partition, value = arguments
                    delivery = await self._producer.submit(
                        topic, value.encode(), partition=int(partition)
                    )
                    task = self._loop.create_task(self._delivered(delivery, future))
                    self._deliveries.add(task)
                    task.add_done_callback(self._deliveries.discard)
                else:
                    await self._run(command, arguments)
                    self._done(future, Report())
            except Exception as error:
                self._done(future, report_of(error))
            if command == "close":
                return

    async def _run(self, command: str, arguments: tuple[str, ...]) -> None:
        if command == "open":
            pairs = dict(text.split("=", 1) for text in arguments)
            config = ProducerConfig.from_mapping({**pairs, "adaptive_linger": "false"})
            self._producer = Producer(config, environment=self._environment)
        elif command == "init":
            await self._producer.start()
        elif command == "begin":
            await self._producer.begin_transaction()
        elif command == "commit":
            await self._producer.commit_transaction()
        elif command == "abort":
            await self._producer.abort_transaction()
        elif command == "offsets":
            group, topic, partition, offset = arguments
            await self._producer.send_offsets_to_transaction(
                {(topic, int(partition)): int(offset)}, group
            )
        elif command == "close":
            await self._producer.close(int(arguments[0]) / 1000)
        else:
            raise ValueError(command)

    async def _delivered(self, delivery: Any, future: asyncio.Future[Report]) -> None:
        try:
            metadata = await delivery
        except Exception as error:
            self._done(future, report_of(error))
        else:
            offset = -1 if metadata.offset is None else metadata.offset
            self._done(future, Report(partition=metadata.partition, offset=offset))

    @staticmethod
    def _done(future: asyncio.Future[Report], report: Report) -> None:
        if not future.done():
            future.set_result(report)

    async def give_up(self) -> None:
        """Cancel the worker of a producer that hangs."""
        self._worker.cancel()
        for task in list(self._deliveries):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._worker


def report_of(error: BaseException) -> Report:
    """Convert our error to the labels of the other clients: by the code of the first error in the
    chain with a code."""
    outcome = error.outcome.value if isinstance(error, KafkaError) else None
    if isinstance(error, KafkaTimeout):
        label = TIMEOUT
    else:
        label = type(error).__name__
        cause: BaseException | None = error
        while cause is not None:
            code = getattr(cause, "code", None)
            if code is not None and code.number > 0:
                label = f"code {code.number}"
                break
            cause = cause.__cause__
    return Report(label=label, error=type(error).__name__, message=str(error), outcome=outcome)


# -- other processes ------------------------------------------------------------------------------


class Remote(Client):
    """A producer in another process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._name = str(next(process.names))

    def begin(self, command: str, *arguments: str) -> asyncio.Future[Report]:
        return self._process.begin(self._name, command, arguments)


class Process:
    """A process that reads commands as lines, see `Harness.java`."""

    def __init__(self, command: list[str]) -> None:
        self.names = itertools.count()
        self._command = command
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[Report]] = {}
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process, also after it has ended (librdkafka has assertions that fail)."""
        async with self._starting:
            if self._reader is not None:
                assert self._process.stdin is not None
                if not self._reader.done() and not self._process.stdin.is_closing():
                    return
                await self._reader
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, cwd=_HERE.parents[1]
            )
            self._reader = asyncio.get_running_loop().create_task(self._read())

    def begin(self, name: str, command: str, arguments: tuple[str, ...]) -> asyncio.Future[Report]:
        """Write a command and return a future of its report."""
        number = str(next(self._numbers))
        future: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        stdin = None if self._reader is None or self._reader.done() else self._process.stdin
        # stdin may be closed before the output has been read to its end.
        if stdin is None or stdin.is_closing():
            future.set_result(Report(label=GONE, error=GONE, message="the process has ended"))
            return future
        self._waiting[number] = future
        line = "\t".join((name, number, command, *arguments))
        stdin.write(line.encode() + b"\n")
        return future

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            part = line.decode().rstrip("\n").split("\t")
            future = self._waiting.pop(part[1], None)
            if future is not None and not future.done():
                future.set_result(_parsed(part[2:]))
        for future in self._waiting.values():
            if not future.done():
                future.set_result(Report(label=GONE, error=GONE, message="the process ended"))
        self._waiting.clear()

    async def end(self) -> None:
        """Close the input of the process; kill the process if it does not end."""
        if self._reader is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 5)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reader


def _parsed(part: list[str]) -> Report:
    if part[0] == "ok":
        place = [int(text) for text in part[1:]] or [-1, -1]
        return Report(partition=place[0], offset=place[1])
    _, error, code, message = part
    label = f"code {code}" if int(code) > 0 else error
    if error == "TimeoutException" or "_TIMED_OUT" in error:
        label = TIMEOUT
    return Report(label=label, error=error, message=message)


def java_command() -> list[str]:
    """Return the command that starts the harness. Compile the harness if it has changed. Raise
    MissingTool without a JDK."""
    import subprocess

    java = find_java()
    if java is None:
        raise MissingTool("the differential oracle needs a JDK of version 17 or newer")
    jars = class_path(KAFKA_4)
    source = _HERE / "Harness.java"
    digest = hashlib.sha256(source.read_bytes() + jars.encode()).hexdigest()[:16]
    classes = _HERE.parents[1] / ".cache" / "differential" / digest
    if not classes.exists():
        compiler = Path(java).with_name("javac")
        tool = str(compiler) if compiler.exists() else "javac"
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as scratch:
            subprocess.run(
                [tool, "-nowarn", "-d", f"{scratch}/classes", "-cp", jars, str(source)],
                check=True,
                timeout=300,
            )
            with contextlib.suppress(OSError):  # another process has already renamed it
                Path(scratch, "classes").rename(classes)
    return [
        java, "-Xms256m", "-Xmx1g", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{classes}:{jars}", "Harness",
    ]  # fmt: skip


@asynccontextmanager
async def processes(clients: tuple[str, ...] = CLIENTS) -> AsyncIterator[dict[str, Process]]:
    """Start the processes of the clients that run outside this one, and end them on exit."""
    running: dict[str, Process] = {}
    try:
        if JAVA in clients:
            running[JAVA] = Process(await asyncio.to_thread(java_command))
        if LIBRDKAFKA in clients:
            module = "tests.differential.librdkafka_harness"
            running[LIBRDKAFKA] = Process([sys.executable, "-m", module])
        for process in running.values():
            await process.start()
        yield running
    finally:
        for process in running.values():
            await process.end()
