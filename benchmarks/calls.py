"""Counts the Python calls of a single `await producer.send()`, by module.

    python -m benchmarks.calls
    python -m benchmarks.calls --trace      # every call, in order

An idempotent producer sends records one after the other to a broker in the same process. Once the
producer is warm, the calls of this package's Python functions for one record are counted. A resumed
coroutine counts as a call. Compiled and generated functions (dataclasses) do not count. The number
does not depend on the machine. Before Python 3.12, a comprehension counts as a separate call.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from types import FrameType
from typing import Any, Final, NamedTuple

WARM_UP: Final = 50


class Call(NamedTuple):
    """One call: the path of the module within the package, and the name of the function."""

    module: str
    function: str


def lone_send() -> list[Call]:
    """Return the calls of one `await producer.send()` of a warm producer, in order."""
    import aiokprod
    from benchmarks.loopback_broker import TOPIC, NearbyBroker

    root = os.path.dirname(aiokprod.__file__) + os.sep
    found: list[Call] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            found.append(Call(code.co_filename.removeprefix(root), code.co_qualname))

    async def run() -> None:
        environment = NearbyBroker().environment()
        async with aiokprod.Producer(
            bootstrap_servers="nearby:9092", environment=environment
        ) as producer:
            for _ in range(WARM_UP):
                await producer.send(TOPIC, b"v" * 100)
            sys.setprofile(watch)
            try:
                await producer.send(TOPIC, b"v" * 100)
            finally:
                sys.setprofile(None)

    asyncio.run(run())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--trace", action="store_true", help="print every call instead")
    chosen = parser.parse_args()
    calls = lone_send()
    if chosen.trace:
        for call in calls:
            print(call.module, call.function)
    else:
        print("| module | calls |\n|---|---:|")
        for module, number in Counter(call.module for call in calls).most_common():
            print(f"| {module} | {number} |")
        print(f"| **all** | **{len(calls)}** |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
