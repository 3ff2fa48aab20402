"""SrfakeRegistry: the Schema Registry of franz-go's own tests, in a separate process.

It is written in Go, shares no code with this project, and is built from the Go module proxy.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from benchmarks import go_program

SOURCE: Final = Path(__file__).with_name("srfake")


class SrfakeRegistry:
    """A registry as a context manager. It runs until the end of the block.

    Args:
        auth: the Authorization header that the registry accepts; "" for any.

    Attributes:
        url: URL of the REST API.
    """

    def __init__(self, auth: str = "") -> None:
        self._arguments = ["-auth", auth] if auth else []
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> SrfakeRegistry:
        self._process = subprocess.Popen(
            [str(go_program.executable(SOURCE)), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"srfake did not start: exit status {self._process.wait(10)}")
        return self

    def __exit__(self, *exc: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()
