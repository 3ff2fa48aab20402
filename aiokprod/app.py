"""The lifecycle of a producer in an application: start, warm-up, probes, drain at shutdown.

`serving` works with every framework that has lifespan functions, `probes` is an ASGI application,
`http_status` translates errors for HTTP clients, and `run` is for scripts. They need only the
standard library. Complete programs are in ``examples/``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aiokprod._client.event_loops import new_event_loop
from aiokprod._client.validation import check_timeout, checked_topics
from aiokprod._log_fields import log_fields
from aiokprod.config import ProducerConfig
from aiokprod.errors import (
    Code,
    ConfigError,
    DeliveryTimeout,
    KafkaError,
    Outcome,
    ProducerClosed,
    ProducerFailed,
    RecordTooLarge,
    SerializationError,
)
from aiokprod.producer import Producer
from aiokprod.records import DrainReport

__all__ = ["HttpStatus", "Probe", "Probes", "http_status", "probes", "run", "serving"]

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

logger = logging.getLogger(__name__)

WARM_RETRY: Final = 1.0
"""Seconds between two attempts to warm up."""

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_WRONG_CONTENT: Final = frozenset({Code.INVALID_RECORD, Code.INVALID_TIMESTAMP})
"""Broker error codes that concern the content of a record."""

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class _Life:
    """The state of a producer that `serving` runs, for the probes.

    Attributes:
        topics: the topics to warm up.
        warm_error: the reason why the warm-up is not complete; None once it is.
        draining: True once `serving` has begun to close the producer.
    """

    def __init__(self, topics: list[str]) -> None:
        self.topics = topics
        self.warm_error: str | None = "the warm-up has not ended" if topics else None
        self.draining = False


_lives: weakref.WeakKeyDictionary[Producer[Any, Any], _Life] = weakref.WeakKeyDictionary()


@asynccontextmanager
async def serving(
    producer: Producer[K, V],
    *,
    warm: Iterable[str] = (),
    warm_required: bool = False,
    drain_s: float | None = None,
    on_report: Callable[[DrainReport], object] | None = None,
) -> AsyncIterator[Producer[K, V]]:
    """Run a producer for the duration of an application.

    ::

        @asynccontextmanager
        async def lifespan(app):
            producer = Producer(bootstrap_servers="localhost:9092")
            async with serving(producer, warm=["orders"]) as app.state.producer:
                yield

    On entry, the producer is started and warmed up. On exit, `probes` responds with 503, and
    pending records are sent for at most `drain_s` seconds.

    Args:
        producer: a producer that was not started yet.
        warm: topics to prepare: their metadata is fetched, and their leaders are connected.
        warm_required: True waits for the warm-up and raises its error. False runs it in the
            background and repeats it until it succeeds, so that the application starts even if
            Kafka is down. Until then the probes `/startupz` and `/readyz` respond with 503. The
            first failure is logged as WARNING.
        drain_s: maximum time of the drain in seconds; 0 fails pending records at once; None stands
            for close_timeout_ms. Must be less than the time after which the platform kills the
            process, minus the time that the server waits for requests.
        on_report: called with the report of the drain, which is also logged and stored in
            `producer.drain_report`.

    Raises:
        ConfigError: an argument is invalid, or no bootstrap server can be resolved.
        MetadataTimeout, InvalidTopic, AuthorizationError, AuthenticationError: with
            warm_required, see `Producer.warm`.
        Others: see `Producer.start`.

    Cancellation ends the drain at once; the report is still made.
    """
    topics = checked_topics("serving", warm)
    check_timeout("serving", drain_s)
    life = _Life(topics)
    _lives[producer] = life
    warming: asyncio.Task[None] | None = None
    try:
        await producer.start()
        if topics and warm_required:
            await producer.warm(topics)
            life.warm_error = None
        elif topics:
            warming = asyncio.create_task(_keep_warming(producer, life), name="aiokprod-warm-up")
    except BaseException:
        await producer.close(0)
        raise
    try:
        yield producer
    finally:
        life.draining = True
        if warming is not None:
            warming.cancel()
        await _drain(producer, drain_s, on_report)


async def _keep_warming(producer: Producer[Any, Any], life: _Life) -> None:
    """Repeat the warm-up until it succeeds."""
    level = logging.WARNING
    while True:
        try:
            await producer.warm(life.topics)
        except KafkaError as error:
            if producer.health().state != "running":
                return  # every call reports this failure
            logger.log(
                level, "the warm-up failed and is repeated: %s", error,
                extra=log_fields("warm_up_failed", error=error, client_id=producer.client_id),
            )  # fmt: skip
            level = logging.DEBUG
            life.warm_error = f"the warm-up failed and is repeated: {error.message}"
        else:
            life.warm_error = None
            logger.info(
                "warmed up: %s", ", ".join(life.topics),
                extra=log_fields("warmed_up", client_id=producer.client_id),
            )  # fmt: skip
            return
        await asyncio.sleep(WARM_RETRY)


async def _drain(
    producer: Producer[Any, Any],
    limit: float | None,
    on_report: Callable[[DrainReport], object] | None,
) -> DrainReport:
    """Close the producer within `limit` seconds and pass the report to `on_report`."""
    closing = producer._lifecycle.close_at_exit() if limit is None else producer.close(limit)
    try:
        report = await closing
    except asyncio.CancelledError:
        # This call returns soon, because the cancellation has ended the drain.
        report = await producer.close()
        if on_report is not None:
            on_report(report)
        raise
    if on_report is not None:
        on_report(report)
    return report


# -- probes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probe.

    Attributes:
        ok: True stands for status 200, and False for 503.
        reasons: the reasons why `ok` is False.
    """

    ok: bool
    reasons: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """The HTTP status."""
        return 200 if self.ok else 503

    @property
    def body(self) -> dict[str, object]:
        """The content of the response, to be sent as JSON."""
        return {"status": "ok" if self.ok else "unavailable", "reasons": list(self.reasons)}


class Probes:
    """The probes of a producer, as methods and as an ASGI application; see `probes`."""

    def __init__(
        self,
        producer: Producer[Any, Any] | Callable[[], Producer[Any, Any] | None],
        *,
        topics: Iterable[str] | None = None,
        max_pressure: float = 0.9,
        max_age_s: float | None = None,
    ) -> None:
        if not isinstance(producer, Producer) and not callable(producer):
            raise ConfigError(
                "probes: producer must be a Producer or a function that returns it, not "
                f"{type(producer).__name__}"
            )
        check_timeout("probes", max_age_s)
        if isinstance(max_pressure, bool) or not isinstance(max_pressure, (int, float)):
            raise ConfigError(f"probes: max_pressure must be a number, not {max_pressure!r}")
        if not 0 < max_pressure <= 1:
            raise ConfigError(f"probes: max_pressure must be above 0 and up to 1: {max_pressure!r}")
        self._producer = producer
        self._topics = None if topics is None else checked_topics("probes", topics)
        self._max_pressure = max_pressure
        self._max_age = max_age_s
        self._seen: set[str] = set()
        self._probes: dict[str, Callable[[], Probe]] = {
            "livez": self.live,
            "readyz": self.ready,
            "startupz": self.started,
        }

    def _current(self) -> Producer[Any, Any] | None:
        return self._producer if isinstance(self._producer, Producer) else self._producer()

    def live(self) -> Probe:
        """Return a result that is ok unless the producer has failed. A failure requires a new
        producer or a restart."""
        producer = self._current()
        health = None if producer is None else producer.health()
        if health is not None and health.state == "failed":
            return Probe(False, (f"the producer failed: {health.error}",))
        return Probe(True)

    def started(self) -> Probe:
        """Return a result that is ok once the producer is started and the warm-up of `serving` is
        complete, and stays ok from then on."""
        producer = self._current()
        if producer is None or producer.health().state == "new":
            return Probe(False, ("the producer is not started",))
        life = _lives.get(producer)
        if life is not None and life.warm_error is not None:
            return Probe(False, (life.warm_error,))
        return Probe(True)

    def ready(self) -> Probe:
        """Return a result that is ok while records can be sent: the producer is started and not
        draining, `Health.ok` is True, the buffer has room, and the topics have leaders."""
        started = self.started()
        producer = self._current()
        if not started.ok or producer is None:
            return started
        return self._ready(producer)

    def _ready(self, producer: Producer[Any, Any]) -> Probe:
        health = producer.health()
        life = _lives.get(producer)
        if health.state == "closed" or (life is not None and life.draining):
            return Probe(False, ("the producer is being closed or is closed",))
        if health.state == "failed":
            return Probe(False, (f"the producer failed: {health.error}",))
        reasons = []
        if not health.ok:
            reasons.append(health.cause or "the producer is not ok")
        elif self._max_age is not None and health.oldest_record_age_s > self._max_age:
            reasons.append(
                f"the oldest record has had no outcome for {health.oldest_record_age_s:.1f} s, "
                f"more than {self._max_age} s"
            )
        if health.pressure > self._max_pressure:
            reasons.append(
                f"{health.pressure:.0%} of the buffer is in use, more than {self._max_pressure:.0%}"
            )
        topics = self._topics
        if topics is None:
            topics = [] if life is None else life.topics
        reasons += [f"topic {topic} has no leader" for topic in self._leaderless(producer, topics)]
        return Probe(not reasons, tuple(reasons))

    def _leaderless(self, producer: Producer[Any, Any], topics: Iterable[str]) -> Iterator[str]:
        """Yield the topics for which no leader of any partition is known.

        Topics that had a leader and whose metadata the producer dropped after metadata_max_idle_ms
        without use are not included.
        """
        runtime = producer._lifecycle.runtime
        if runtime is None:
            return
        snapshot = runtime.metadata.snapshot
        for topic in topics:
            known = snapshot.topics.get(topic)
            if known is not None and known.available:
                self._seen.add(topic)
            elif known is not None or topic not in self._seen:
                yield topic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond as an ASGI application. The last part of the path selects the probe, so the
        application can be mounted."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self._respond(scope, send)

    async def _respond(self, scope: Scope, send: Send) -> None:
        probe = self._probes.get(scope["path"].rstrip("/").rsplit("/", 1)[-1])
        headers = [(b"cache-control", b"no-store")]
        content: dict[str, object]
        if probe is None:
            status, content = 404, {"status": "not found", "probes": sorted(self._probes)}
        elif scope["method"] not in ("GET", "HEAD"):
            status, content = 405, {"status": "method not allowed"}
            headers.append((b"allow", b"GET, HEAD"))
        else:
            answer = probe()
            status, content = answer.status, answer.body
        body = json.dumps(content).encode()
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        shown = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": shown})


async def _lifespan(receive: Receive, send: Send) -> None:
    """Respond to lifespan events, for servers that run the probes as a separate application."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def probes(
    producer: Producer[Any, Any] | Callable[[], Producer[Any, Any] | None],
    *,
    topics: Iterable[str] | None = None,
    max_pressure: float = 0.9,
    max_age_s: float | None = None,
) -> Probes:
    """Return an ASGI application with Kubernetes probes for a producer, to be mounted.

    ::

        app.mount("/kafka", probes(lambda: app.state.producer))

    - /livez responds with 200 unless the producer has failed and must be replaced.
    - /startupz responds with 200 once the producer is started and the warm-up of `serving` is
      complete.
    - /readyz then responds with 200 while `Health.ok` is True, the buffer has room and the topics
      have leaders, until `serving` ends or the producer is closed.

    Otherwise the probes respond with 503. The body is JSON, ``{"status": "ok", "reasons": []}``. A
    probe reports the state of the producer. It never waits and contacts no broker. Servers of other
    kinds can call the methods `live`, `started` and `ready` of the returned object.

    Args:
        producer: a `Producer`, or a function that returns the current producer, or None before it
            exists.
        topics: the topics that must have a leader; None stands for those that `serving` warms up.
            Other topics become known with the first record to them.
        max_pressure: maximum share of buffer_memory in use (`Health.pressure`), above 0 and up
            to 1.
        max_age_s: maximum age in seconds of the oldest record without an outcome; None sets no
            limit besides `Health.ok`.

    Raises:
        ConfigError: an argument is invalid.
    """
    return Probes(producer, topics=topics, max_pressure=max_pressure, max_age_s=max_age_s)


# -- HTTP ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HttpStatus:
    """The response to a request whose record failed; see `http_status`.

    Attributes:
        status: the HTTP status.
        error: the text of the error. It names topics, partitions and brokers; it has no key, value
            or credential, unless the text of a broker quotes them.
        outcome: whether the record can be in the log.
        may_repeat: True if the client may send the same request again, because that may succeed and
            cannot store the record twice.
        retry_after_s: value of the header Retry-After in seconds; None if there is no such header.
    """

    status: int
    error: str
    outcome: Outcome
    may_repeat: bool = False
    retry_after_s: int | None = None

    @property
    def may_be_in_log(self) -> bool:
        """True if the record may be in the log, so that another request may store it twice."""
        return not self.outcome.definite

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response, without those that describe the content."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}

    @property
    def body(self) -> dict[str, object]:
        """The content of the response, to be sent as JSON."""
        return {
            "error": self.error,
            "outcome": self.outcome.value,
            "may_be_in_log": self.may_be_in_log,
            "may_repeat": self.may_repeat,
        }


def http_status(error: KafkaError | TimeoutError, *, retry_after_s: int = 1) -> HttpStatus:
    """Return the response to an HTTP request whose record failed with this error.

    ::

        @app.exception_handler(KafkaError)
        async def failed(request: Request, error: KafkaError) -> JSONResponse:
            response = http_status(error)
            return JSONResponse(response.body, response.status, response.headers)

    The first row that applies:

    ====== =================================================================================
    status error
    ====== =================================================================================
    504    outcome UNKNOWN: the record may be in the log
    503    `error.retriable`: the same request may succeed later. ProducerClosed and
           ProducerFailed: another instance, or this one after its restart, may accept it
    413    RecordTooLarge, and the code RECORD_LIST_TOO_LARGE
    422    SerializationError, and the codes INVALID_RECORD and INVALID_TIMESTAMP
    500    all others, which the client cannot fix: permissions, topics, settings, defects
    ====== =================================================================================

    Only status 503 has the header Retry-After and `may_repeat=True`. An UNKNOWN outcome has the
    separate status 504, because proxies and clients repeat a request after 503, which could store
    its record twice.

    Args:
        error: the error that `send`, `submit`, `try_submit` or a future raised. A TimeoutError that
            is not a KafkaError, such as that of ``future.result(10)`` or `asyncio.timeout`, only
            ended a wait, so the outcome is UNKNOWN. An error in a `BulkResult` concerns one record.
            Other records of the call may be in the log, and a repeated request may store them
            twice.
        retry_after_s: value of the header Retry-After in seconds, 0 or more.

    Raises:
        ConfigError: an argument has another type, or `retry_after_s` is negative.
    """
    if type(retry_after_s) is not int or retry_after_s < 0:
        raise ConfigError(
            f"http_status: retry_after_s must be a whole number from 0 on, not {retry_after_s!r}"
        )
    if not isinstance(error, KafkaError):
        if not isinstance(error, TimeoutError):
            raise ConfigError(
                "http_status: error must be a KafkaError or a TimeoutError, not "
                f"{type(error).__name__}"
            )
        return HttpStatus(504, "the record had no outcome in time", Outcome.UNKNOWN)
    text, outcome = str(error), error.outcome
    if not outcome.definite:
        return HttpStatus(504, text, outcome)
    if error.retriable or isinstance(error, (ProducerClosed, ProducerFailed)):
        return HttpStatus(503, text, outcome, may_repeat=True, retry_after_s=retry_after_s)
    code = Code.NONE if error.code is None else error.code.number
    if isinstance(error, RecordTooLarge) or code == Code.RECORD_LIST_TOO_LARGE:
        return HttpStatus(413, text, outcome)
    if isinstance(error, SerializationError) or code in _WRONG_CONTENT:
        return HttpStatus(422, text, outcome)
    return HttpStatus(500, text, outcome)


# -- scripts ------------------------------------------------------------------------------------


def run(
    main: Callable[[Producer[K, V]], Awaitable[T]],
    producer: Producer[K, V] | ProducerConfig,
    *,
    warm: Iterable[str] = (),
    warm_required: bool = False,
    drain_s: float | None = None,
    on_report: Callable[[DrainReport], object] | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
) -> T:
    """Run ``await main(producer)`` in a new event loop, drain the producer and return the result.

    For scripts. This function replaces `asyncio.run`, and uses uvloop if that is installed.

    SIGTERM and SIGINT (Ctrl-C) cancel `main`; then pending records are sent for at most `drain_s`
    seconds. A second signal ends `main` and the drain at once; the report is still made. Further
    signals have their usual effect. `main` may catch CancelledError to finish its work and return.

    Args:
        main: called with the started producer.
        producer: a producer that was not started yet, or a configuration.
        warm, warm_required, drain_s, on_report: see `serving`.
        loop_factory: creates the event loop.

    Returns:
        The result of `main`.

    Raises:
        SystemExit: a signal ended `main`, so the work was not completed, even if all records were
            delivered. The exit code is 128 plus the signal number, as in a shell.
        DeliveryTimeout: `main` returned, but some records had no outcome when the drain ended.
        RuntimeError: called while an event loop is running in this thread.
        Others: the exceptions of `main` and `serving`.
    """
    if isinstance(producer, ProducerConfig):
        producer = Producer(producer)  # type: ignore[assignment]
    if not isinstance(producer, Producer):
        raise ConfigError(
            f"run: producer must be a Producer or a ProducerConfig, not {type(producer).__name__}"
        )
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("run() cannot be called from a running event loop: use serving()")
    given = producer
    reports: list[DrainReport] = []

    def reported(report: DrainReport) -> None:
        reports.append(report)
        if on_report is not None:
            on_report(report)

    async def serve() -> T:
        async with serving(
            given, warm=warm, warm_required=warm_required, drain_s=drain_s, on_report=reported
        ):
            return await main(given)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        result, received = runner.run(_until_signalled(serve))
    if received is not None:
        raise SystemExit(128 + received)
    if not all(report.complete for report in reports):
        raise DeliveryTimeout(
            f"records had no outcome when the drain ended: {reports[-1]}", outcome=Outcome.UNKNOWN
        )
    return result  # type: ignore[return-value]


async def _until_signalled(
    function: Callable[[], Awaitable[T]],
) -> tuple[T | None, int | None]:
    """Return the result of the function, or the number of the signal that cancelled it."""
    task = asyncio.ensure_future(function())
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        logger.info(
            "%s: %s",
            signal.Signals(number).name,
            "ending; a second signal ends the drain" if len(received) == 1 else "ending at once",
            extra=log_fields("signal_received", signal=number),
        )
        task.cancel()
        if len(received) > 1:
            restore()

    restore = _handle_signals(on_signal)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:  # cancelled by the runner, after a signal without a handler
        task.cancel()
        await asyncio.wait([task])
        raise
    finally:
        restore()
    if task.cancelled() and received:
        return None, received[0]
    return task.result(), None


def _handle_signals(on_signal: Callable[[int], None]) -> Callable[[], None]:
    """Call `on_signal` on the loop for SIGTERM and SIGINT. Return a function that restores the
    earlier handlers.

    Has no effect outside the main thread, where signals cannot be handled.
    """
    loop = asyncio.get_running_loop()
    earlier = {}
    for number in SIGNALS:
        with contextlib.suppress(ValueError):  # raised outside the main thread
            # Do not use `loop.add_signal_handler`: Windows does not support it, and it would not
            # restore the handler of the runner.
            earlier[number] = signal.signal(
                number, lambda number, _: loop.call_soon_threadsafe(on_signal, number)
            )

    def restore() -> None:
        while earlier:
            number, handler = earlier.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    return restore
