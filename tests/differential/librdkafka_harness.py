"""Many librdkafka producers in one process, controlled by the command lines of `Harness.java`."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

_CLOSE_S = 5.0
_out = threading.Lock()
_names = {
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight.requests.per.connection": "max.in.flight.requests.per.connection",
    "retries": "message.send.max.retries",
    "max.block.ms": "",
    "batch.size": "",
    "request.timeout.ms": "socket.timeout.ms",
}


def _settings(pairs: list[str]) -> tuple[dict[str, Any], float]:
    """Return librdkafka's settings, and max.block.ms in seconds, which is an argument of its
    calls."""
    given = dict(pair.split("=", 1) for pair in pairs)
    found: dict[str, Any] = {_names.get(name, name): value for name, value in given.items()}
    found.pop("")
    found["topic.metadata.refresh.fast.interval.ms"] = 10
    found["topic.metadata.propagation.max.ms"] = given["max.block.ms"]
    found["batch.num.messages"] = 1 if given["batch.size"] == "0" else 10_000
    found["log_level"] = 0
    found["logger"] = _Silence()
    return found, int(given["max.block.ms"]) / 1000


class _Silence:
    def log(self, *arguments: Any) -> None:
        """Ignore a log message of librdkafka."""

    def __getattr__(self, name: str) -> Any:
        return self.log


class Client(threading.Thread):
    """One producer and the thread that runs its commands."""

    group: Any = None

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        self.commands: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._id = name
        self._producer: Any = None
        self._polls = True
        self._poller = threading.Thread(target=self._poll, daemon=True)
        self._block = 0.0

    def run(self) -> None:
        while True:
            part = self.commands.get()
            number, command, arguments = part[1], part[2], part[3:]
            try:
                if not getattr(self, f"_{command}")(number, *arguments):
                    self._answer(number, "ok")
            except KafkaException as error:
                self._fail(number, error.args[0])
            except Exception as error:
                text = " ".join(str(error).split())
                self._answer(number, f"error\t{type(error).__name__}\t-1\t{text}")
            if command == "close":
                return

    def _answer(self, number: str, text: str) -> None:
        with _out:
            sys.stdout.write(f"{self._id}\t{number}\t{text}\n")
            sys.stdout.flush()

    def _fail(self, number: str, error: KafkaError) -> None:
        message = " ".join(error.str().split())
        self._answer(number, f"error\t{error.name()}\t{error.code()}\t{message}")

    def _poll(self) -> None:
        while self._polls:
            try:
                self._producer.poll(0.5)
            except KafkaException:
                # A fatal error, which calls and deliveries report as well.
                time.sleep(0.01)

    # -- commands: truth means that the answer comes later --------------------------------------

    def _open(self, number: str, *pairs: str) -> None:
        settings, self._block = _settings(list(pairs))
        self._producer = Producer(settings)
        self._poller.start()

    def _init(self, number: str) -> None:
        self._producer.init_transactions(self._block)

    def _begin(self, number: str) -> None:
        self._producer.begin_transaction()

    def _commit(self, number: str) -> None:
        self._producer.commit_transaction(self._block)

    def _abort(self, number: str) -> None:
        self._producer.abort_transaction(self._block)

    def _offsets(self, number: str, group: str, topic: str, partition: str, offset: str) -> None:
        positions = [TopicPartition(topic, int(partition), int(offset))]
        self._producer.send_offsets_to_transaction(positions, Client.group, self._block)

    def _send(self, number: str, topic: str, partition: str, value: str) -> bool:
        def done(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self._fail(number, error)
            else:
                offset = message.offset()  # None if no broker returned one
                told = -1 if offset is None else offset
                self._answer(number, f"ok\t{message.partition()}\t{told}")

        self._producer.produce(topic, value.encode(), partition=int(partition), on_delivery=done)
        return True

    def _close(self, number: str, milliseconds: str) -> None:
        if self._producer is None:
            return
        self._producer.flush(int(milliseconds) / 1000)
        self._producer.purge()
        self._producer.flush(0.2)
        self._polls = False
        self._poller.join()
        self._producer = None


def main() -> None:
    """Execute commands from standard input until it ends."""
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    Client.group = consumer.consumer_group_metadata()
    clients: dict[str, Client] = {}
    for line in sys.stdin:
        part = line.rstrip("\n").split("\t")
        client = clients.get(part[0])
        if client is None:
            client = clients[part[0]] = Client(part[0])
            client.start()
        client.commands.put(part)
        if part[2] == "close":
            del clients[part[0]]
    sys.stdout.flush()
    os._exit(0)  # do not wait for librdkafka's threads of producers that hang


if __name__ == "__main__":
    main()
