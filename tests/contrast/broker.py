"""A `FakeCluster` behind real sockets in a separate process, controlled by JSON lines.

It gives responses that real brokers give too rarely for a test. `dump` prints the records in the
log.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from aiokprod._wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from aiokprod.testing.fake_cluster import (
    FakeCluster,
    close,
    delay,
    edit,
    lose_answer,
    serve_tcp,
)
from tests.chaos.audit import Log
from tests.chaos.values import SIZE, read

FETCH, API_VERSIONS = 1, 18
TOPIC = "contrast"
PARTITIONS = 3
REACTIONS = {
    "lose-answer": lambda: lose_answer(),
    "delay": lambda: delay(0.7),
    "close": lambda: close(process=True),
}


class ScriptedBroker:
    """Starts the broker process and sends commands to it."""

    def __enter__(self) -> ScriptedBroker:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contrast.broker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.bootstrap = self._read()["bootstrap"]
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the scripted broker has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def fail(self, code: int, times: int, *, append: bool = False) -> None:
        """Answer the next `times` batches of every partition with this error."""
        self.tell(do="fail", code=code, times=times, append=append)

    def react(self, reaction: str) -> None:
        """Apply this reaction to all Produce requests until `heal` is called."""
        self.tell(do="react", reaction=reaction)

    def heal(self) -> None:
        self.tell(do="heal")

    def forget_producers(self) -> None:
        self.tell(do="forget")

    def log(self) -> Log:
        """Return the log in the format of `audit.read_log`."""
        partition, offset, values = [], [], []
        for number, records in enumerate(self.tell(do="dump")["logs"]):
            for at, text in records:
                value = bytes.fromhex(text)
                assert len(value) == SIZE
                partition.append(number)
                offset.append(at)
                values.append(value)
        rows, true = read(TOPIC, values)
        return Log(
            np.array(partition, np.int32),
            np.array(offset, np.int64),
            rows["producer"],
            rows["sequence"].astype(np.int64),
            rows["asked"],
            true,
        )


def _pretend(cluster: FakeCluster) -> None:
    """Advertise Fetch, because librdkafka writes batches of format 2 only to brokers that support
    it."""

    def with_fetch(response: ApiVersionsResponse) -> ApiVersionsResponse:
        return replace(response, api_keys=[*response.api_keys, ApiVersion(FETCH, 4, 11)])

    cluster.control(API_VERSIONS, edit(with_fetch))


def _obey(cluster: FakeCluster, command: dict[str, Any]) -> dict[str, Any]:
    do = command["do"]
    if do == "fail":
        for partition in range(PARTITIONS):
            cluster.fail_produce(
                (TOPIC, partition), command["code"], command["times"], append=command["append"]
            )
    elif do == "react":
        cluster.control(0, REACTIONS[command["reaction"]]())
    elif do == "forget":
        for partition in range(PARTITIONS):
            cluster.forget_producers(TOPIC, partition)
    elif do == "heal":
        cluster.script.clear()
        _pretend(cluster)
        cluster.produce_script.clear()
    elif do == "dump":
        logs = [[[r.offset, r.value.hex()] for r in log if r.value] for log in cluster.logs(TOPIC)]
        return {"logs": logs}
    return {"ok": True}


async def serve() -> None:
    cluster = FakeCluster()
    cluster.create_topic(TOPIC, PARTITIONS)
    _pretend(cluster)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with serve_tcp(cluster) as bootstrap:
        print(json.dumps({"bootstrap": bootstrap}), flush=True)
        while line := await lines.readline():
            print(json.dumps(_obey(cluster, json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
