"""Runs a KRaft node as a Java process: formatting, starting, signals, log.

All calls are synchronous. `kafka_cluster` runs blocking calls in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from aiokprod.testing.reaper import Reaper, kill_group

FORMAT_TIMEOUT: Final = 120.0
TERMINATE_TIMEOUT: Final = 60.0
_STOP_SECONDS: Final = 10.0

# The ports are outside the ephemeral range, so that the system does not assign the port of a
# stopped broker to an outgoing connection.
_PORTS: Final = range(20000, 32000)


def free_ports(count: int) -> list[int]:
    """Returns distinct ports of the loopback interface on which no process listens."""
    found: list[int] = []
    candidates = random.SystemRandom().sample(_PORTS, len(_PORTS))
    for port in candidates:
        if len(found) == count:
            break
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    if len(found) < count:
        raise RuntimeError(f"no {count} free ports in {_PORTS.start}..{_PORTS.stop - 1}")
    return found


class BrokerNode(Protocol):
    """The interface of a node, which is a process or a container."""

    @property
    def running(self) -> bool: ...
    def format(self) -> None:
        """Formats the storage. Called once, before the first start."""

    def start(self) -> None:
        """Starts the node. Does not wait until it serves requests."""

    def kill(self) -> None:
        """Kills the node."""

    def terminate(self, timeout: float) -> None:
        """Requests a controlled shutdown. Kills the node after `timeout` seconds."""

    def pause(self) -> None:
        """Freezes the node. Its sockets stay open, but it does not respond."""

    def resume(self) -> None: ...
    def log_tail(self, lines: int) -> str: ...


class JavaNode:
    """A combined broker and controller in one JVM."""

    main_class = "kafka.Kafka"

    def __init__(
        self,
        node_id: int,
        folder: Path,
        properties: Mapping[str, str],
        *,
        java: str,
        class_path: str,
        cluster_id: str,
        heap: str,
        reaper: Reaper,
        format_arguments: Sequence[str] = (),
    ) -> None:
        self._format_arguments = tuple(format_arguments)
        self.node_id = node_id
        self.log_file = folder / "server.log"
        self._folder = folder
        self._properties_file = folder / "server.properties"
        self._command = [
            java,
            f"-Xmx{heap}",
            "-Xms128m",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            "-cp",
            class_path,
        ]
        self._cluster_id = cluster_id
        self._reaper = reaper
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={value}\n" for name, value in {**properties, **self._own()}.items()]
        self._properties_file.write_text("".join(lines))

    def _own(self) -> dict[str, str]:
        return {"log.dirs": str(self._folder / "data")}

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id, or None if the node is not running."""
        return self._process.pid if self._process is not None and self.running else None

    def format(self) -> None:
        command = [*self._command, "kafka.tools.StorageTool", "format"]
        command += ["-t", self._cluster_id, "-c", str(self._properties_file)]
        command += self._format_arguments
        answer = subprocess.run(
            command,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FORMAT_TIMEOUT,
        )
        if answer.returncode != 0:
            raise RuntimeError(f"formatting node {self.node_id} failed:\n{answer.stdout[-3000:]}")

    def start(self) -> None:
        if self.running:
            raise RuntimeError(f"node {self.node_id} is running already")
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, self.main_class, str(self._properties_file)],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._reaper.add_process(self._process.pid)

    def kill(self) -> None:
        if self._process is not None and self.running:
            kill_group(self._process.pid)
        self._wait(TERMINATE_TIMEOUT)

    def terminate(self, timeout: float = TERMINATE_TIMEOUT) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)
        try:
            self._wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def _wait(self, timeout: float) -> None:
        process = self._process
        if process is None:
            return
        process.wait(timeout)
        with self._ended:
            if self._process is process:
                self._reaper.forget_process(process.pid)
                self._process = None

    def pause(self) -> None:
        """Freezes the process and waits until all of its threads are stopped. Until then, which may
        take some time on a busy machine, the node still serves requests."""
        process = self._signal(signal.SIGSTOP)
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return
        give_up = time.monotonic() + _STOP_SECONDS
        while os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > give_up:
                raise RuntimeError(f"node {self.node_id} did not stop within {_STOP_SECONDS} s")
            time.sleep(0.001)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> subprocess.Popen[bytes]:
        if self._process is None or not self.running:
            raise RuntimeError(f"node {self.node_id} is not running")
        os.killpg(self._process.pid, number)
        return self._process

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the node's log, or an empty string if there is no log."""
        with contextlib.suppress(OSError):
            return "\n".join(
                self.log_file.read_text(errors="replace").splitlines()[-lines:],
            )
        return ""
