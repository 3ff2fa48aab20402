"""Serializers, partitioners, interceptors and plug-ins of a simulated application, correct and
faulty ones.

The record's number determines what each object does with a record, and the seed whether the object
is faulty for it. The objects store their arguments; `UserObjects.check` compares them with the
outcomes. Each record must be reported to each object exactly once, with the outcome that its caller
got.
"""

from __future__ import annotations

import asyncio
import dataclasses
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiokprod.errors import (
    ConfigError,
    KafkaError,
    Outcome,
    ProducerClosed,
    ProducerFailed,
    SerializationError,
)
from aiokprod.records import ProducerRecord, RecordMetadata
from tests.scenarios.scenario_helpers import clock, now

if TYPE_CHECKING:
    from tests.simulation.oracle import Place
    from tests.simulation.workload import Attempt, Load

SLOW_S = 0.001
"""Seconds for which a slow object blocks the loop."""

LATER_S = 0.003
"""Maximum seconds that an asynchronous serializer takes."""

HOOKS_FILE = __file__

PARTITIONER = "partitioner"
SERIALIZER = "serializer"
ASYNCHRONOUS = "asynchronous"
INTERRUPT = "interrupt"

Headers = tuple[tuple[str, Any], ...]


class HookError(Exception):
    """The exception that an object of the application raises."""


class HookInterrupt(BaseException):
    """A BaseException that is not an Exception, like KeyboardInterrupt."""


class NeverDone:
    """An awaitable where only plain values are allowed; it must never be awaited."""

    def __await__(self) -> Iterator[Any]:
        raise AssertionError("awaited")


@dataclass(frozen=True)
class Outcomes:
    """The reported outcome of a record: its place, or the error."""

    topic: str
    partition: int | None
    offset: int | None
    error: BaseException | None


@dataclass(eq=False)
class Token:
    """The token of a plug-in for a record."""

    number: int
    noted: list[Outcomes] = field(default_factory=list)


class UserObjects:
    """The objects of one seed.

    Args:
        kinds: kinds of objects (of `seeds.OBJECTS`).

    Attributes:
        load: the load, set after construction.
        headers: headers of each record after the objects changed them.
        chosen: the last choice of the partitioner, by record.
        refusals: why a record must fail, by number: the fault of an object.
        is_calm: the objects no longer do anything that would fail a record.
        stalls: the simulation's list of blocking calls.
        interrupts: number of exceptions raised by hooks that were passed to the loop.
    """

    def __init__(self, seed: int, kinds: tuple[str, ...]) -> None:
        self.seed = seed
        self.kinds = kinds
        self.load: Load | None = None
        self.headers: dict[int, Headers] = {}
        self.chosen: dict[int, int] = {}
        self.refusals: dict[int, str] = {}
        self.is_calm = False
        self.stalls: list[tuple[float, float]] = []
        self.interrupts = 0
        self.interceptors = [Interceptor(self, n) for n in range(kinds.count("interceptor"))]
        self.plugins = [Plugin(self, n) for n in range(kinds.count("plugin"))]
        self.serialized: Counter[int] = Counter()
        self.severity = 1 + seed % 3

    def options(self) -> dict[str, Any]:
        """Return the arguments of the producer."""
        found: dict[str, Any] = {}
        if "key_serializer" in self.kinds:
            found["key_serializer"] = self._key
        if "value_serializer" in self.kinds:
            found["value_serializer"] = self._value
        if "header_serializer" in self.kinds:
            found["value_serializer"] = HeaderSerializer(self)
        if "async_serializer" in self.kinds:
            found["value_serializer"] = self._value_later
        if "partitioner" in self.kinds:
            found["partitioner"] = self._partition
        if self.interceptors:
            found["interceptors"] = self.interceptors
        if self.plugins:
            found["plugins"] = self.plugins
        return found

    def draw(self, who: str, number: int, *, of: int = 100) -> int:
        """Return a number below `of`, always the same one for the same record."""
        return zlib.crc32(f"{self.seed}/{who}/{number}".encode()) % of

    def mood(self, who: str, number: int) -> str:
        """Return the fault, if any, of an object in addition to its normal work with a record."""
        dice = self.draw(who, number, of=1000)
        if number < 0 or self.is_calm or dice >= 30 * self.severity:
            return ""
        return ("slow", "raise", "rubbish", "headers", "reenter", "headers", "rubbish")[dice % 7]

    def block(self) -> None:
        """Block the loop for a moment."""
        self.stalls.append((now(), now() + SLOW_S))
        clock().stall(SLOW_S)

    def reenter(self) -> None:
        """Submit records from within a call."""
        if self.load is not None and not self.is_calm:
            self.load.submit_within()

    def headers_of(self, number: int, before: Headers) -> Headers:
        """Return the headers that a record must have."""
        return self.headers.get(number, before)

    # -- serializers and partitioner ------------------------------------------------------------

    def _key(self, key: bytes) -> Any:
        return (bytes, bytearray, memoryview)[len(self.serialized) % 3](key)

    def _value(self, value: bytes) -> Any:
        return self.serialize(number_of(value), value)

    def serialize(self, number: int, value: bytes) -> Any:
        """Return the value, or the result of a faulty serializer."""
        self.serialized[number] += 1
        mood = self.mood("serializer", number)
        if mood == "slow":
            self.block()
        elif mood == "reenter":
            self.reenter()
        elif mood == "raise":
            self.refusals[number] = SERIALIZER
            raise HookError
        elif mood == "rubbish":
            self.refusals[number] = SERIALIZER
            return 5
        return (bytes, bytes, bytearray, memoryview)[number % 4](value)

    def _value_later(self, value: bytes) -> Any:
        number = number_of(value)
        if number % 2:
            return self.serialize(number, value)
        self.refusals.setdefault(number, ASYNCHRONOUS)
        return self._later(number, value)

    async def _later(self, number: int, value: bytes) -> Any:
        await asyncio.sleep((0, 0, LATER_S)[number % 3])
        return self.serialize(number, value)

    def _partition(
        self, topic: str, key: Any, key_bytes: Any, value: bytes, value_bytes: Any, cluster: Any
    ) -> Any:
        number = number_of(value)
        mood = self.mood("partitioner", number)
        if mood == "slow":
            self.block()
        elif mood == "reenter":
            self.reenter()
        elif mood == "raise":
            self.refusals[number] = PARTITIONER
            raise HookError
        elif mood == "rubbish":
            self.refusals[number] = PARTITIONER
            return (None, -1, 10_000, "0", True)[number % 5]
        count = cluster.partition_count(topic)
        self.chosen[number] = choice = self.draw("partition", number) % count
        return choice

    # -- judgment -------------------------------------------------------------------------------

    def check(self, judged: Judged) -> Iterator[str]:
        """Yield a description of each contradiction."""
        for number, count in self.serialized.items():
            if count > 1 and number >= 0:
                yield f"the serializer was called {count} times for record {number}"
        hooks: list[Interceptor | Plugin] = [*self.interceptors, *self.plugins]
        for hook in hooks:
            for text in hook.check(judged):
                yield f"{type(hook).__name__} {hook.name}: {text}"

    def explains(self, attempt: Attempt) -> bool:
        """Return True if an object of the application caused this failure of the record."""
        reason, result = self.refusals.get(attempt.number), attempt.result
        if isinstance(result, HookInterrupt):  # propagates through the whole call
            return INTERRUPT in map(self.refusals.get, [attempt.number, *_numbers(attempt.group)])
        if reason == SERIALIZER:
            return isinstance(result, SerializationError)
        if reason == PARTITIONER:
            cause = getattr(result, "__cause__", None)
            return isinstance(result, HookError | ConfigError) or isinstance(cause, HookError)
        if reason == ASYNCHRONOUS:
            return attempt.is_immediate and isinstance(result, ConfigError)
        return False

    def must_fail(self, attempt: Attempt) -> bool:
        """Return True if an object has refused the record."""
        return self.refusals.get(attempt.number, ASYNCHRONOUS) != ASYNCHRONOUS


class HeaderSerializer:
    """A serializer that appends a header to some records."""

    def __init__(self, objects: UserObjects) -> None:
        self.objects = objects

    def serialize(self, topic: str, headers: list[Any], value: bytes) -> Any:
        """Serialize a value."""
        number = number_of(value)
        if self.objects.draw("header", number) < 30:
            headers.append(("schema", b"1"))
            self.objects.headers[number] = tuple(headers)
        return self.objects.serialize(number, value)


class Judged:
    """The outcomes of a seed, against which reports are judged.

    Args:
        places: where each value was found.
        truncated: where each value was before its log was truncated. With acks=1 an acknowledged
            record may be lost this way.
        is_own: the call ended for a reason that is not a `KafkaError`.
        has_offsets: brokers return offsets.
        touched: numbers of records within whose calls a signal handler raised: the return value of
            an object may have been dropped.
    """

    def __init__(
        self,
        attempts: list[Attempt],
        places: Callable[[Attempt], list[Place]],
        truncated: Callable[[Attempt], list[Place]],
        is_own: Callable[[Attempt], bool],
        has_offsets: bool,
        touched: set[int],
    ) -> None:
        self.attempts = attempts
        self.places = places
        self.truncated = truncated
        self.is_own = is_own
        self.has_offsets = has_offsets
        self.touched = touched

    def wrong(self, number: int, noted: Outcomes) -> str | None:
        """Return why a report contradicts the outcome of the record, or None if it does not."""
        attempt = self.attempts[number]
        result, error = attempt.result, noted.error
        text = f"{attempt} ended with {result!r}, reported as {noted}"
        if noted.topic != attempt.topic or (
            noted.partition is not None and attempt.partition not in (None, noted.partition)
        ):
            return text
        if isinstance(result, RecordMetadata):
            same = noted.offset == result.offset and noted.partition == result.partition
            return None if error is None and same else text
        if not self.is_uncertain(attempt):
            same = (
                isinstance(error, KafkaError)
                and isinstance(result, KafkaError)
                and (type(error), error.outcome) == (type(result), result.outcome)
            )
            return None if same else text
        places = self.places(attempt)
        if error is None:
            seen = [*places, *self.truncated(attempt)]
            found = (noted.partition, noted.offset) in [(p.partition, p.offset) for p in seen]
            return None if found or not self.has_offsets or noted.offset is None else text
        definite = isinstance(error, KafkaError) and error.outcome is not Outcome.UNKNOWN
        return text if definite and places else None

    def is_uncertain(self, attempt: Attempt) -> bool:
        """Return True if the call may have ended before the record had its outcome, or for another
        reason."""
        touched = attempt.is_struck or attempt.number in self.touched
        return attempt.limit_s is not None or touched or self.is_own(attempt)

    def count(self, numbers: Counter[int]) -> tuple[int, int]:
        """Return how many of these records were certainly and possibly acknowledged."""
        attempts = [self.attempts[number] for number in numbers]
        sure = sum(isinstance(a.result, RecordMetadata) for a in attempts)
        return sure, sure + sum(
            self.is_uncertain(a) and not isinstance(a.result, RecordMetadata) for a in attempts
        )


class Interceptor:
    """Counts records, marks them with a header to recognise them, and misbehaves."""

    def __init__(self, objects: UserObjects, number: int) -> None:
        self.objects = objects
        self.name = f"i{number}"
        self.passed: Counter[int] = Counter()
        self.noted: list[tuple[int | None, Headers, Any]] = []

    def on_send(self, record: Any) -> Any:
        """See `ProducerInterceptor.on_send`."""
        objects = self.objects
        number = number_of(record.value)
        self.passed[number] += 1
        mood = objects.mood(self.name, number)
        if mood == "slow":
            objects.block()
        elif mood == "reenter":
            objects.reenter()
        elif mood == "raise":
            if not number % 5:
                objects.refusals[number] = INTERRUPT
                raise HookInterrupt
            raise HookError
        elif mood == "rubbish":
            if not number % 9:
                objects.headers[number] = ()
                return dataclasses.replace(record, headers=None)  # equivalent to no headers
            return self._rubbish(record, number % 8)
        headers = (*record.headers, (self.name, b"%d" % number))
        if mood == "headers":
            headers = headers[::-1] if number % 2 else ()
        objects.headers[number] = headers
        return dataclasses.replace(record, headers=(list, tuple)[number % 2](headers))

    @staticmethod
    def _rubbish(record: Any, which: int) -> Any:
        wrong = (5, [("x", 5)], {"x": b""}, [["x", b""]], [("\ud800", b"")])
        if which < len(wrong):
            return dataclasses.replace(record, headers=wrong[which])
        return (None, NeverDone(), object.__new__(ProducerRecord))[which - len(wrong)]

    def on_acknowledgement(self, metadata: Any, error: Any, headers: Headers = ()) -> None:
        """See `ProducerInterceptor.on_acknowledgement`."""
        found = [value for name, value in headers if name == self.name]
        number = int(found[0]) if found else None
        # Store the error unchanged: an injector may strike in its properties.
        self.noted.append((number, headers, metadata or error))
        misbehave(self.objects, self.name + "noted", len(self.noted))

    def close(self) -> None:
        """See `ProducerInterceptor.close`."""

    def check(self, judged: Judged) -> Iterator[str]:
        """Check that each record was reported once, with its outcome."""
        for number, count in self.passed.items():
            if count > 1 and number >= 0:
                yield f"on_send was called {count} times: {judged.attempts[number]}"
        passed, noted = self.passed.total(), len(self.noted)
        if passed != noted:
            found = {number for number, _, _ in self.noted}
            missing = [number for number in self.passed if number not in found]
            yield f"{passed} records passed, {noted} were reported; perhaps {missing[:5]}"
        known: Counter[int] = Counter()
        for found_number, headers, result in self.noted:
            number = -1 if found_number is None else found_number
            if number < 0:
                continue
            outcome = outcome_of(result)
            known[number] += 1
            if wrong := judged.wrong(number, outcome):
                yield wrong
            sure = outcome.error is None and number not in judged.touched
            if sure and headers != self.objects.headers[number]:
                yield f"headers {headers}, not {self.objects.headers[number]}"
        twice = [number for number, count in known.items() if count > 1]
        if twice:
            yield f"reported more than once: {[judged.attempts[number] for number in twice[:2]]}"
        good = sum(isinstance(result, RecordMetadata) for _, _, result in self.noted)
        least, most = judged.count(Counter({n: c for n, c in self.passed.items() if n >= 0}))
        if not least <= good <= most:
            yield f"{good} were reported as acknowledged, not {least} to {most}"


class Plugin:
    """Returns tokens for most records, changes headers of some, and misbehaves."""

    def __init__(self, objects: UserObjects, number: int) -> None:
        self.objects = objects
        self.name = f"p{number}"
        self.called: Counter[int] = Counter()
        self.tokens: dict[int, Token] = {}
        self.strangers: list[object] = []
        self.unsent: list[Outcomes] = []

    def on_append(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> Any:
        """See `RecordPlugin`."""
        objects = self.objects
        number = number_of(value or b"")
        self.called[number] += 1
        mood = objects.mood(self.name, number)
        if mood == "slow":
            objects.block()
        elif mood == "reenter":
            objects.reenter()
        elif mood == "raise":
            if not number % 5:
                objects.refusals[number] = INTERRUPT
                raise HookInterrupt
            raise HookError
        elif mood == "rubbish":
            lost = Token(number)
            return (5, (headers,), (5, lost), (None, lost), ((("x", 5),), lost), NeverDone(),
                    ((("\ud800", b""),), lost), [headers, lost])[number % 8]  # fmt: skip
        if objects.draw(self.name + "token", number) < 30:
            return None if number % 2 else (headers, None)
        if mood == "headers":
            changed = (*headers, (self.name, b"x"))[:: 1 if number % 2 else -1]
            headers = objects.headers[number] = changed
        self.tokens[number] = token = Token(number)
        return headers, token

    def on_batch_settled(self, batch: Any, tokens: Any, base_offset: Any, error: Any) -> None:
        """See `RecordPlugin`."""
        for index, token in tokens:
            offset = None if base_offset is None else base_offset + index
            topic, partition = batch.topic_partition
            self._note(token, Outcomes(topic, partition, offset, error))
        misbehave(self.objects, self.name + "settled", len(self.tokens) + tokens[0][0])

    def on_record_unsent(self, topic: str, partition: int | None, token: Any, error: Any) -> None:
        """See `RecordPlugin`."""
        noted = Outcomes(topic, partition, None, error)
        if token is None:
            self.unsent.append(noted)
        else:
            self._note(token, noted)
        misbehave(self.objects, self.name + "unsent", len(self.tokens) + len(self.unsent))

    def _note(self, token: Any, noted: Outcomes) -> None:
        if not isinstance(token, Token):
            self.strangers.append(token)
            return
        token.noted.append(noted)
        if self.tokens.get(token.number) is not token:
            self.strangers.append(token)

    def check(self, judged: Judged) -> Iterator[str]:
        """Check that each token is returned once, with the outcome of its record."""
        if self.strangers:
            yield f"tokens of nothing: {self.strangers[:2]}"
        for number, count in self.called.items():
            if count > 1 and number >= 0:
                yield f"on_append was called {count} times: {judged.attempts[number]}"
        for number, token in self.tokens.items():
            if number < 0:
                continue
            if not token.noted and number in judged.touched:
                continue
            if len(token.noted) != 1:
                yield f"reported {token.noted}: {judged.attempts[number]}"
            elif wrong := judged.wrong(number, token.noted[0]):
                yield wrong
        yield from self._check_unsent(judged)

    def _check_unsent(self, judged: Judged) -> Iterator[str]:
        """Check that a record that failed before `on_append` is reported without a token."""
        early = [a for a in judged.attempts if not self.called[a.number]]
        good = [a for a in early if isinstance(a.result, RecordMetadata)]
        if good:
            yield f"acknowledged, but on_append was not called: {good[:2]}"
        noted = Counter((one.topic, repr(type(one.error))) for one in self.unsent)
        reported = [a for a in early if self._is_reported(judged, a)]
        sure = Counter((a.topic, repr(type(a.result))) for a in reported)
        if lacking := sure - noted:
            yield f"not reported: {lacking}"
        if len(self.unsent) > len(early):
            yield f"{len(self.unsent)} reports without a token for {len(early)} records"

    @staticmethod
    def _is_reported(judged: Judged, attempt: Attempt) -> bool:
        """Return True if the call certainly began to process this record and failed for the
        reported reason."""
        result = attempt.result
        ended = isinstance(result, ProducerClosed | ProducerFailed)
        return isinstance(result, KafkaError) and not ended and not judged.is_uncertain(attempt)


def outcome_of(result: Any) -> Outcomes:
    """Return the outcome as `on_acknowledgement` gets it."""
    is_stored = isinstance(result, RecordMetadata)
    offset, error = (result.offset, None) if is_stored else (None, result)
    return Outcomes(result.topic, result.partition, offset, error)


def misbehave(objects: UserObjects, who: str, number: int) -> None:
    """Cause the fault of a hook after it has stored an outcome."""
    dice = objects.draw(who, number, of=300)
    if dice < objects.severity:
        raise HookError
    if dice == 10:
        raise HookInterrupt
    if dice == 20:
        objects.reenter()


def _numbers(attempts: Iterable[Attempt]) -> list[int]:
    return [attempt.number for attempt in attempts]


def number_of(value: bytes) -> int:
    """Return the number of the record with this value, or -1 if it is not a record of the load."""
    parts = value.split(b"/", 4)
    return int(parts[3]) if len(parts) == 5 else -1
