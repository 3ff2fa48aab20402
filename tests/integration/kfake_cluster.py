"""KfakeCluster: the brokers of franz-go's kfake, in a process of their own.

kfake is the fake cluster that franz-go tests its client with: Go code that shares nothing with
ours, idempotence and transactions included. It is built from the Go module proxy into the same
per-user cache as the jars of real brokers.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Final

from aiokprod.testing.kafka_artifacts import MissingTool, cache_root

SOURCE: Final = Path(__file__).with_name("kfake")
BUILD_TIMEOUT: Final = 900.0


def executable() -> Path:
    """Path of the program, built if this state of its source was not built before.

    Raises MissingTool without Go, RuntimeError with the compiler's output if it does not build.
    """
    files = [*sorted(SOURCE.glob("*.go")), SOURCE / "go.mod", SOURCE / "go.sum"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    target = cache_root().parent / "kfake" / f"kfake-{digest}"
    if target.exists():
        return target
    go = shutil.which("go")
    if go is None:
        raise MissingTool("tests against kfake need Go (1.25 or newer), which is not installed")
    target.parent.mkdir(parents=True, exist_ok=True)
    building = target.with_suffix(".building")
    done = subprocess.run(
        [go, "build", "-o", str(building), "."],
        cwd=SOURCE,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT,
    )
    if done.returncode:
        raise RuntimeError(f"kfake does not build:\n{done.stdout}{done.stderr}")
    building.rename(target)
    return target


class KfakeCluster:
    """Brokers that run from `with` to its end.

    Args:
        brokers: how many.
        version: the newest release whose API versions are offered, such as "v2.4"; None for all.
    """

    def __init__(self, brokers: int = 3, version: str | None = None) -> None:
        self._arguments = ["-brokers", str(brokers)]
        if version is not None:
            self._arguments += ["-version", version]
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap_servers = ""

    def __enter__(self) -> KfakeCluster:
        self._process = subprocess.Popen(
            [str(executable()), *self._arguments],
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
        """Carry out one of the commands that kfake/main.go lists; returns what it answers.

        Raises RuntimeError if it refuses.
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
