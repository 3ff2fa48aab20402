"""`python -m aiokprod.testing.fake_cluster` and `python -m aiokprod.testing.mock_cluster`."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from aiokprod import Producer
from aiokprod.testing import FakeCluster, mock_cluster, run
from aiokprod.testing.fake_cluster.console import COMMANDS, Console, main

COMMAND = (sys.executable, "-m", "aiokprod.testing.fake_cluster")


def free_port(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    for first in range(20_000, 60_000, 7):
        with ExitStack() as listening, suppress(OSError):
            for port in range(first, first + count):
                listening.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no free ports")


@contextmanager
def brokers(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answers(process: subprocess.Popen[str], command: str, count: int) -> list[str]:
    """Send a command and return its first `count` lines of output."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(command + "\n")
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_brokers_for_another_process() -> None:
    port = free_port(2)
    with brokers("--brokers", "2", "--port", str(port), "--partitions", "1") as process:
        servers = first_line(process)
        assert servers == f"127.0.0.1:{port},127.0.0.1:{port + 1}"

        async def send() -> None:
            async with Producer(bootstrap_servers=servers) as producer:
                await producer.send("t", b"\xff\xc3\xbc", key=b"k", headers=[("h", b"1")])
                assert answers(process, "kill all", 2) == ["broker 1 is down", "broker 2 is down"]
                assert answers(process, "start all", 2) == ["broker 1 is up", "broker 2 is up"]
                await producer.send("t", None)

        asyncio.run(send())
        first, second, last = answers(process, "dump t", 3)
        assert json.loads(first) == {
            "partition": 0, "offset": 0, "key": "k", "value": "\\xffü", "headers": [["h", "1"]],
        }  # fmt: skip
        assert (json.loads(second)["key"], json.loads(second)["value"]) == (None, None)
        assert last == "2 records"
        answers(process, "quit", 0)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_brokers_and_the_end_of_the_input_does_not(
    number: signal.Signals,
) -> None:
    with brokers("--port", "0") as process:
        servers = first_line(process)
        assert process.stdin is not None
        process.stdin.close()

        async def send() -> None:
            async with Producer(bootstrap_servers=servers) as producer:
                await producer.send("t", b"v")

        asyncio.run(send())
        process.send_signal(number)
        assert process.wait(60) == 0
        process.stdin = None


def test_a_signal_stops_the_brokers_while_the_input_is_open() -> None:
    with brokers("--port", "0") as process:
        assert first_line(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("closed", [False, True])
def test_brokers_go_on_if_nothing_reads_the_output(closed: bool) -> None:
    with brokers("--port", "0") as process:
        servers = first_line(process)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if closed:
            process.stdout.close()
        process.stdin.write("help\n" * 2_000)  # more output than the buffer of a pipe
        process.stdin.flush()

        async def send() -> None:
            async with Producer(bootstrap_servers=servers) as producer:
                await producer.send("t", b"v")

        asyncio.run(send())
        if closed:
            process.stdin.write("quit\n")
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        process.stdin.close()
        process.stdout.close()
        process.stdin = process.stdout = None


def test_commands() -> None:
    async def script() -> None:
        cluster = FakeCluster(2)
        console = Console(cluster)

        def execute(line: str) -> list[str]:
            return list(console.execute(line))

        assert execute("kill 1\n") == execute("kill 1") == ["broker 1 is down"]
        assert [broker.broker_id for broker in cluster.living()] == [2]
        assert execute("start 1\n") == execute("start 1") == ["broker 1 is up"]
        assert len(cluster.living()) == 2
        assert execute("kill 3") == ["no broker '3'; there are 1 to 2"]
        assert execute("start x") == ["no broker 'x'; there are 1 to 2"]
        assert execute("dump t") == ["no topic 't'; topics: none"]
        cluster.create_topic("u", 1)
        assert execute("dump t") == ["no topic 't'; topics: u"]
        assert execute("dump u") == ["0 records"]
        assert execute("\n") == []
        assert execute("help") == [COMMANDS]
        assert execute("stop 1") == [f"unknown command 'stop 1'\n{COMMANDS}"]
        assert not console.ended.is_set()
        assert execute("quit") == []
        assert console.ended.is_set()

    run(script)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--brokers", "0"], "--brokers and --partitions must be 1 or more"),
        (["--partitions", "0"], "--brokers and --partitions must be 1 or more"),
        (["--port", "65534"], "--port: the ports must be 0 to 65535"),
        (["--port", "-1"], "--port: the ports must be 0 to 65535"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--brokers", "1", "--port", str(port)]) == 1
    assert f"('127.0.0.1', {port}): address already in use; choose" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "text"), [(main, "kill ID|all"), (mock_cluster.main, "number of brokers (3)")]
)
def test_both_clusters_explain_themselves(
    command: object, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(command)
    with pytest.raises(SystemExit) as ended:
        command(["--help"])
    assert ended.value.code == 0
    assert text in capsys.readouterr().out


def test_a_mock_cluster_has_at_least_one_broker(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        mock_cluster.main(["0"])
    assert ended.value.code == 2
    assert "N must be 1 or more" in capsys.readouterr().err
