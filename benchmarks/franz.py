"""franz-go, the Go client (`kgo`), as a client of the benchmarks. The program in `benchmarks/franz`
sends the records of a case."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from benchmarks import go_program
from benchmarks.case import Case
from benchmarks.payloads import Payloads

SOURCE: Final = Path(__file__).with_name("franz")
TIMEOUT: Final = 300.0
BATCH_BYTES: Final = 131_072
LINGER_MS: Final = 5
MAX_BUFFERED: Final = 1_000_000
"""Number of records that may wait in the client. With franz-go's default of 10 000, `Produce`
blocks most of the time. aiokprod's limit is the 64 MiB of `buffer_memory`."""


def measure(
    servers: str, topic: str, case: Case, payloads: Payloads, warm_up: int, warm_up_seconds: float
) -> dict[str, Any]:
    """Run the program and return the figures of the records after the warm-up.

    In addition to the figures of the Python clients, the result contains the numbers of Produce
    `requests`, of record `batches`, and of `bytes_sent`.

    Raises RuntimeError with the program's output if it failed, MissingTool without Go.
    """
    job = {
        "servers": servers.split(","),
        "topic": topic,
        "values": [value.decode() for value in payloads.values],
        "keys": [key.decode() for key in payloads.keys or ()],
        "headers": {name: value.decode() for name, value in payloads.headers or ()},
        "codec": case.codec,
        "acks": case.acks,
        "idempotent": case.idempotent,
        "records": case.records,
        "seconds": case.seconds,
        "warm_up": warm_up,
        "warm_up_seconds": warm_up_seconds,
        "batch_bytes": BATCH_BYTES,
        "linger_ms": LINGER_MS,
        "max_buffered": MAX_BUFFERED,
    }
    done = subprocess.run(
        [str(go_program.executable(SOURCE))],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"franz-go failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
