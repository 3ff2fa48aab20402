"""One measurement in a process of its own: prints a line of JSON.

python -m benchmarks.worker CLIENT SERVERS TOPIC COUNT SIZE LOOP
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time

from benchmarks import roundtrip
from benchmarks.clients import CLIENTS

ROUND_TRIP = "round-trip"


async def measure(name: str, servers: str, topic: str, count: int, size: int) -> dict[str, object]:
    """Seconds (wall and processor) for `count` acknowledged records; latencies where kept."""
    client = CLIENTS[name]()
    await client.start(servers, topic)
    value = b"v" * size
    gc.collect()
    used = time.process_time()
    started = time.perf_counter()
    await client.run(value, count)
    seconds = time.perf_counter() - started
    used = time.process_time() - used
    await client.stop()
    return {
        "seconds": seconds,
        "cpu": used,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "latencies": getattr(client, "latencies", []),
        "warm_up": 1,
    }


def main() -> None:
    name, servers, topic, count, size, loop = sys.argv[1:]
    if name == ROUND_TRIP:
        latencies = roundtrip.measure(servers, topic, b"v" * int(size), int(count))
        print(json.dumps({"seconds": sum(latencies), "latencies": latencies, "warm_up": 0}))
        return
    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(measure(name, servers, topic, int(count), int(size)))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
