"""KfakeCluster: the brokers of franz-go's kfake in a separate process.

franz-go tests its client with the fake cluster kfake. It is written in Go, shares no code with this
project, and supports idempotence and transactions. The program is built from the Go module proxy
into the same per-user cache as the jars of real brokers.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from benchmarks import go_program

SOURCE: Final = Path(__file__).with_name("kfake")


class KfakeCluster:
    """A kfake cluster as a context manager. The brokers run until the end of the block.

    Args:
        brokers: number of brokers.
        version: the newest release whose API versions are offered, such as "v2.4"; None for no
            limit.
    """

    def __init__(self, brokers: int = 3, version: str | None = None) -> None:
        self._arguments = ["-brokers", str(brokers)]
        if version is not None:
            self._arguments += ["-version", version]
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap_servers = ""

    def __enter__(self) -> KfakeCluster:
        self._process = subprocess.Popen(
            [str(go_program.executable(SOURCE)), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.bootstrap_servers = self._process.stdout.readline().strip()
        if not self.bootstrap_servers:
            raise RuntimeError(f"kfake did not start: exit status {self._process.wait(10)}")
        return self

    def __exit__(self, *exc: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()

    def command(self, *words: object) -> str:
        """Run one of the commands in kfake/main.go and return its answer.

        Raises RuntimeError if kfake rejects the command.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(" ".join(map(str, words)) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
        if not answer.startswith("ok"):
            raise RuntimeError(f"kfake: {answer or 'ended'}")
        return answer.removeprefix("ok").strip()
