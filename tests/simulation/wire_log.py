"""The requests that the producer sent and the responses it received, parsed from the bytes.

They show the oracle which records were ever in a Produce request, and which code the client
received for each attempt. The oracle compares errors of records with them.
"""

from __future__ import annotations

import contextlib
import math
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

from aiokprod._errors import Code
from aiokprod._net.connection import Connection
from aiokprod._wire.headers import decode_request_header, decode_response_header
from aiokprod._wire.messages import REQUESTS, RESPONSES
from aiokprod.testing.fake_cluster.batches import Batch, BatchRefused, read_batch
from aiokprod.testing.transports import Link, Recording

PRODUCE: Final = 0
METADATA: Final = 3
FIND_COORDINATOR: Final = 10
API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
INIT_PRODUCER_ID: Final = 22
BY_ID: Final = 13
"""First Produce version that identifies topics by id."""

LEAST_BACKOFF_S: Final = 0.079
"""Minimum backoff in seconds: retry_backoff_ms (100) minus its jitter (20 %)."""

_FIXED = struct.Struct(">ihhi")
"""Length, API key, version, correlation id."""


@dataclass(slots=True)
class Exchange:
    """A request and its response.

    Attributes:
        sent_at: loop time in s when the request was passed to the connection.
        heard_at: when the last byte of a readable response arrived; inf without a response.
        frame: the request, with its length. answer: the body of the response.
        broker: address of the connection. lost_at: when the connection was lost; inf if never.
    """

    api_key: int
    version: int
    correlation_id: int
    sent_at: float
    frame: bytes
    broker: tuple[str, int]
    lost_at: float
    heard_at: float = math.inf
    answer: Any = None

    @property
    def answered_at(self) -> float:
        """Return `heard_at`, or the time of sending if the request needs no response."""
        silent = self.api_key == PRODUCE and _acks(self) == 0
        return self.sent_at if silent else self.heard_at

    def is_open(self, at: float) -> bool:
        """Return True if the response could still arrive after this instant."""
        return min(self.heard_at, self.lost_at) > at


@dataclass(frozen=True, slots=True)
class Attempt:
    """A record in a Produce request.

    Attributes:
        heard_at: inf without a response.
        code: the code received for the partition; None without a response, or if the response omits
            the partition.
        partition: index of the partition it was sent to.
    """

    sent_at: float
    heard_at: float
    version: int
    acks: int
    code: int | None
    partition: int


class Wire:
    """Recordings of all connections of one producer, in the order of their creation."""

    def __init__(self) -> None:
        self._recordings: list[Recording] = []
        self._brokers: list[tuple[str, int]] = []
        self._requests: list[list[Exchange]] | None = None
        self._is_heard = False
        self._attempts: dict[bytes, list[Attempt]] | None = None
        self._unwritten: list[Exchange] = []
        self._unwritten_attempts: dict[bytes, list[Attempt]] | None = None
        self._stamped: dict[int, list[float]] = {}  # producer id -> send times of batches with it

    def follow(self, link: Link) -> None:
        """Record a new connection; a callback for `MemoryNetwork.on_link`."""
        recording = link.client.recording = Recording()
        self._recordings.append(recording)
        self._brokers.append(link.names[1])

    @contextlib.contextmanager
    def watch_unwritten(self) -> Iterator[None]:
        """Store the requests sent on a connection that broke in the same iteration of the event
        loop.

        `Connection` writes nothing to a transport that is already closing, so no recording contains
        these requests. Each of them is an attempt nevertheless: it is in flight until
        `connection_lost` ends it (Java `NetworkClient.cancelInFlightRequests`,
        `Sender.reenqueueBatch`).
        """
        send = Connection.send

        def watched(connection: Connection, *args: Any, **options: Any) -> None:
            channel = connection.channel
            before = len(channel._outgoing)  # left by earlier requests of the same iteration
            send(connection, *args, **options)
            transport = connection._transport
            left = b"".join(channel._outgoing[before:])
            if left and transport is not None and transport.is_closing():
                at = connection._loop.time()
                broker = transport.get_extra_info("peername")
                self._unwritten.append(_exchange(at, left, broker, at))

        setattr(Connection, "send", watched)  # noqa: B010  (mypy takes an assignment for a mistake)
        try:
            yield
        finally:
            setattr(Connection, "send", send)  # noqa: B010

    def exchanges(self) -> list[Exchange]:
        """Return all requests with their responses, connection after connection. They are parsed
        once."""
        requests = self.requests()
        if not self._is_heard:
            self._is_heard = True
            assert self._requests is not None
            for recording, sent in zip(self._recordings, self._requests, strict=True):
                _hear(recording, sent)
        return requests

    def connections(self) -> list[list[Exchange]]:
        """Return `exchanges` of each connection."""
        self.exchanges()
        assert self._requests is not None
        return self._requests

    def requests(self) -> list[Exchange]:
        """Like `exchanges`, but possibly without responses, which take most of the time to
        parse."""
        if self._requests is None:
            self._requests = list(map(_requests, self._recordings, self._brokers))
        return [each for sent in self._requests for each in sent]

    def attempts(self, value: bytes) -> list[Attempt]:
        """Return the Produce requests that contained the record with this value."""
        if self._attempts is None:
            self._attempts = {}
            for each in self.exchanges():
                if each.api_key == PRODUCE:
                    for batch, attempt in _batches(each):
                        self._stamped.setdefault(batch.producer_id, []).append(each.sent_at)
                        _note_records(self._attempts, batch, attempt)
        return self._attempts.get(value, [])

    def unwritten_attempts(self, value: bytes) -> list[Attempt]:
        """Like `attempts`, for requests sent on a connection that had just broken: no byte of them
        was written (`watch_unwritten`)."""
        if self._unwritten_attempts is None:
            self._unwritten_attempts = {}
            for each in self._unwritten:
                if each.api_key == PRODUCE:
                    for batch, attempt in _batches(each):
                        _note_records(self._unwritten_attempts, batch, attempt)
        return self._unwritten_attempts.get(value, [])

    def sequences(self, producer_id: int) -> Iterator[tuple[Attempt, int, int, bytes]]:
        """Yield each record sent under this producer id, with its epoch, sequence and value."""
        for each in self.exchanges():
            for batch, attempt in _batches(each) if each.api_key == PRODUCE else ():
                if batch.producer_id == producer_id:
                    for sequence, record in enumerate(batch.records, batch.base_sequence):
                        yield attempt, batch.epoch, sequence, record.value or b""

    def hears_of(self, cluster_id: str) -> float:
        """Return when the first Metadata response of this cluster was received; inf if none was, or
        if no earlier response contained the id of another cluster."""
        named = [
            each
            for each in self.exchanges()
            if each.api_key == METADATA and each.answer is not None
            if each.answer.cluster_id and each.answer.brokers
        ]
        for number, each in enumerate(sorted(named, key=lambda one: one.heard_at)):
            if each.answer.cluster_id == cluster_id:
                return each.heard_at if number else math.inf
        return math.inf

    def hasty(self, api_key: int) -> tuple[int, int]:
        """Return the number of requests of an API that were sent before the shortest backoff after
        an earlier request for the same thing, and the number of all its requests. Exempt are
        requests after a response that demands them at once, and those that replace a used producer
        id without epochs left."""
        before: dict[Any, Exchange] = {}
        repeated = []
        mine = [each for each in self.requests() if each.api_key == api_key]
        for each in sorted(mine, key=lambda one: one.sent_at):
            subject = _subject(each)
            last = before.get(subject)
            before[subject] = each
            if last is not None and each.sent_at - last.sent_at < LEAST_BACKOFF_S:
                repeated.append((last, each))
        if repeated:
            self.exchanges()
        hasty = 0
        for last, each in repeated:
            code = getattr(last.answer, "error_code", None)
            used = code == Code.NONE and api_key == INIT_PRODUCER_ID and self._used(last, each)
            hasty += code != Code.CONCURRENT_TRANSACTIONS and not used
        return hasty, len(mine)

    def _used(self, granted: Exchange, until: Exchange) -> bool:
        """Return True if records were sent with the granted producer id before the next id was
        requested."""
        self.attempts(b"")
        sent = self._stamped.get(granted.answer.producer_id, [])
        return any(granted.heard_at <= at <= until.sent_at for at in sent)

    def hasty_metadata(self) -> tuple[int, int]:
        """Return the number of Metadata requests sent before the shortest backoff after the
        previous one, and the number of all. Two kinds need no backoff: a request that names a topic
        for the first time, and the same request to another broker while an earlier broker may still
        respond (`MetadataUpdater` sends it in parallel with a slow broker, not after it)."""
        mine = sorted(
            (each for each in self.requests() if each.api_key == METADATA),
            key=lambda one: one.sent_at,
        )
        if all(later.sent_at - one.sent_at >= LEAST_BACKOFF_S for one, later in pairwise(mine)):
            return 0, len(mine)
        self.exchanges()
        named: set[str] = set()
        asked: list[Exchange] = []  # the same request to several brokers
        question: frozenset[str] = frozenset()
        last_at = -math.inf
        hasty = 0
        for each in mine:
            topics = _topics(each)
            if (
                topics == question
                and each.broker not in {one.broker for one in asked}
                and any(one.is_open(each.sent_at) for one in asked)
            ):
                asked.append(each)
            else:
                hasty += topics <= named and each.sent_at - last_at < LEAST_BACKOFF_S
                question, asked = topics, [each]
            named |= topics
            last_at = each.sent_at
        return hasty, len(mine)


def _batches(exchange: Exchange) -> Iterator[tuple[Batch, Attempt]]:
    """Yield the batches of a readable Produce request, and the result of each."""
    _, body = decode_request_header(exchange.frame[4:])
    request: Any = REQUESTS[PRODUCE].decode(body, exchange.version)
    codes = _codes(exchange.answer, exchange.version)
    for topic in request.topic_data:
        name = bytes(topic.topic_id) if exchange.version >= BY_ID else topic.name
        for item in topic.partition_data:
            attempt = Attempt(
                exchange.sent_at,
                exchange.heard_at,
                exchange.version,
                request.acks,
                codes.get((name, item.index)),
                item.index,
            )
            try:
                yield read_batch(bytes(item.records), produce_version=exchange.version), attempt
            except BatchRefused:
                continue


def _note_records(found: dict[bytes, list[Attempt]], batch: Batch, attempt: Attempt) -> None:
    for record in batch.records:
        found.setdefault(record.value or b"", []).append(attempt)


def _subject(exchange: Exchange) -> Any:
    """Return what a request is about. Requests about different things may be sent in parallel."""
    if exchange.api_key != FIND_COORDINATOR:
        return None
    _, body = decode_request_header(exchange.frame[4:])
    request: Any = REQUESTS[FIND_COORDINATOR].decode(body, exchange.version)
    return request.key_type, request.key, tuple(request.coordinator_keys)


def _topics(exchange: Exchange) -> frozenset[str]:
    """Return the topic names in a Metadata request."""
    _, body = decode_request_header(exchange.frame[4:])
    request: Any = REQUESTS[METADATA].decode(body, exchange.version)
    return frozenset(topic.name for topic in request.topics or ())


def _codes(answer: Any, version: int) -> dict[tuple[Any, int], int]:
    """Return the error codes of a Produce response by topic and partition; of several, the first
    one."""
    found: dict[tuple[Any, int], int] = {}
    for topic in () if answer is None else answer.responses:
        name = bytes(topic.topic_id) if version >= BY_ID else topic.name
        for partition in topic.partition_responses:
            found.setdefault((name, partition.index), partition.error_code)
    return found


def _requests(recording: Recording, broker: tuple[str, int]) -> list[Exchange]:
    """Return the requests of one connection."""
    return [
        _exchange(at, frame, broker, recording.ended_at)
        for at, frame in _frames(recording.sent, first_byte=True)
    ]


def _exchange(at: float, frame: bytes, broker: tuple[str, int], lost_at: float) -> Exchange:
    """Return a request without its response."""
    _, api_key, version, correlation_id = _FIXED.unpack_from(frame)
    return Exchange(api_key, version, correlation_id, at, frame, broker, lost_at)


def _hear(recording: Recording, found: list[Exchange]) -> None:
    """Match the responses of a connection to its requests. Unreadable bytes end the connection, as
    they do in the client."""
    produced = next((one for one in found if one.api_key == PRODUCE), None)
    silent = produced is not None and _acks(produced) == 0  # a producer has one acks setting
    waiting = iter([one for one in found if not (silent and one.api_key == PRODUCE)])
    for at, frame in _frames(recording.received, first_byte=False):
        exchange = next(waiting, None)
        if exchange is None:
            break
        try:
            number, body = decode_response_header(
                memoryview(frame)[4:], exchange.api_key, exchange.version
            )
            if number != exchange.correlation_id:
                break
            answer = None
            if exchange.api_key != API_VERSIONS:  # an unsupported version is answered in version 0
                answer = RESPONSES[exchange.api_key].decode(body, exchange.version)
        except Exception:
            break
        exchange.heard_at, exchange.answer = at, answer


def _acks(exchange: Exchange) -> int:
    _, body = decode_request_header(exchange.frame[4:])
    request: Any = REQUESTS[PRODUCE].decode(body, exchange.version)
    return int(request.acks)


def _frames(
    pieces: Iterable[tuple[float, Any]], *, first_byte: bool
) -> Iterator[tuple[float, bytes]]:
    """Yield complete frames with their lengths, and the time of their first or last byte."""
    pieces = list(pieces)
    data = b"".join(bytes(piece) for _, piece in pieces)
    ends = list(accumulate(len(piece) for _, piece in pieces))
    start = 0
    while start + 4 <= len(data):
        size = 4 + int.from_bytes(data[start : start + 4], "big", signed=True)
        if size < 8 or start + size > len(data):
            return
        # The piece that contains a byte is the first one that ends after it.
        byte = start if first_byte else start + size - 1
        yield pieces[bisect_left(ends, byte + 1)][0], data[start : start + size]
        start += size
