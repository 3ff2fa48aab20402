"""Fake brokers on TCP ports, for programs in other terminals, with commands on standard input.

    python -m aiokprod.testing.fake_cluster --port 9092

The first line of standard output contains the bootstrap servers. All records stay in memory. The
brokers stop at `quit`, SIGTERM or SIGINT. The end of standard input does not stop them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final

from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.cluster import FakeCluster
from aiokprod.testing.fake_cluster.log import StoredRecord
from aiokprod.testing.fake_cluster.tcp import serve_tcp

COMMANDS: Final = """\
kill ID|all     kill a broker, or all; others become leaders
start ID|all    start it again
dump TOPIC      the records of a topic, one JSON object a line
help            this text
quit            stop the brokers"""


class Console:
    """Executes commands on a cluster.

    Attributes:
        ended: set by `quit`.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.ended = asyncio.Event()

    def execute(self, line: str) -> Iterator[str]:
        """Execute a command and yield its lines of output."""
        match line.split():
            case []:
                pass
            case ["kill" | "start", which] if not self._brokers(which):
                yield f"no broker {which!r}; there are 1 to {len(self._cluster.brokers)}"
            case ["kill", which]:
                for broker in self._brokers(which):
                    if broker.is_up:
                        self._cluster.kill(broker.broker_id)
                    yield f"broker {broker.broker_id} is down"
            case ["start", which]:
                for broker in self._brokers(which):
                    if not broker.is_up:
                        self._cluster.start(broker.broker_id)
                    yield f"broker {broker.broker_id} is up"
            case ["dump", topic] if topic in self._cluster.topics:
                count = 0
                for partition, records in enumerate(self._cluster.logs(topic)):
                    for record in records:
                        yield _shown(partition, record)
                        count += 1
                yield f"{count} records"
            case ["dump", topic]:
                others = ", ".join(sorted(self._cluster.topics)) or "none"
                yield f"no topic {topic!r}; topics: {others}"
            case ["help"]:
                yield COMMANDS
            case ["quit"]:
                self.ended.set()
            case _:
                yield f"unknown command {line.strip()!r}\n{COMMANDS}"

    def _brokers(self, which: str) -> list[FakeBroker]:
        brokers = self._cluster.brokers
        if which == "all":
            return list(brokers.values())
        return [brokers[int(which)]] if which.isdecimal() and int(which) in brokers else []


def _shown(partition: int, record: StoredRecord) -> str:
    return json.dumps(
        {
            "partition": partition,
            "offset": record.offset,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def _write(text: str) -> None:
    data = memoryview(text.encode(sys.stdout.encoding, "backslashreplace"))
    with contextlib.suppress(OSError):  # without a reader of the output, execute commands silently
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


async def serve(cluster: FakeCluster, host: str, port: int) -> None:
    """Serve the cluster until `quit` or a signal, and execute the lines of standard input."""
    console = Console(cluster)
    loop = asyncio.get_running_loop()
    if sys.platform != "win32":
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, console.ended.set)
    async with serve_tcp(cluster, host, port=port) as servers:
        print(servers, flush=True)

        def execute(line: str, output: Future[str]) -> None:
            output.set_result("".join(f"{text}\n" for text in console.execute(line)))

        def read() -> None:
            # This thread also writes the output, so that a slow or absent reader does not block the
            # brokers. It uses no buffered files: it would hold their locks when the interpreter
            # exits.
            with (
                contextlib.suppress(OSError, RuntimeError),  # RuntimeError: the loop is closed
                open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines,
            ):
                for line in lines:
                    output: Future[str] = Future()
                    loop.call_soon_threadsafe(execute, line.decode(errors="replace"), output)
                    _write(output.result())

        if sys.stdin is not None:
            threading.Thread(target=read, name="fake-cluster-input", daemon=True).start()
        await console.ended.wait()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="python -m aiokprod.testing.fake_cluster",
        description="Fake Kafka brokers on this machine that keep all records in memory. The first "
        "line of the output has the bootstrap servers.",
        epilog=f"commands on standard input:\n{COMMANDS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--brokers", type=int, default=3, metavar="N", help="default 3")
    made.add_argument(
        "--port", type=int, default=9092,
        help="of the first broker; the others have the next ones (9092). 0: any free ports",
    )  # fmt: skip
    made.add_argument(
        "--host", default="127.0.0.1", help="listen here, and advertise it (127.0.0.1)"
    )
    made.add_argument(
        "--partitions", type=int, default=3, metavar="N",
        help="of a topic, which appears when it is first used (3)",
    )  # fmt: skip
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if options.brokers < 1 or options.partitions < 1:
        made.error("--brokers and --partitions must be 1 or more")
    if not 0 <= options.port <= 65_536 - options.brokers:
        made.error("--port: the ports must be 0 to 65535")
    cluster = FakeCluster(options.brokers, default_partitions=options.partitions)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(cluster, options.host, options.port))
    except OSError as error:
        print(f"cannot listen: {error.strerror}; choose another --port", file=sys.stderr)
        return 1
    return 0
