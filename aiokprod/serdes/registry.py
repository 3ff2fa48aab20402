"""A client for the part of the Confluent Schema Registry's REST API that a producer needs.

Requests run in worker threads, at most `_MAX_REQUESTS` at a time, with `http.client` of the
standard library. Each schema needs only one request, so an HTTP package with a connection pool
would have no benefit. Requests are sent to the configured servers only, redirects are not followed,
and error texts contain no part of a response.

Source: Confluent's "Schema Registry API Reference".
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import random
import ssl
import uuid
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlsplit

from aiokprod._backoff import ExponentialBackoff
from aiokprod._redaction import redacted
from aiokprod._security.http_exchange import HttpExchange, HttpRequest
from aiokprod._security.secret import Credentials, Secret, as_secret, revealed
from aiokprod._security.token_provider import TokenProvider
from aiokprod.errors import AuthenticationError, ConfigError, KafkaError
from aiokprod.serdes._shared_calls import RepeatableProblem, SharedCalls

__all__ = [
    "RegisteredSchema",
    "Registry",
    "RegistryAuth",
    "RegistryError",
    "RegistryRequest",
    "RegistryResponse",
    "RegistryTransport",
    "SchemaReference",
]

_MAX_REQUESTS: Final = 4
"""Maximum number of concurrent requests of one event loop, including threads that hang in name
resolution."""
_MAX_ANSWER: Final = 16 << 20
_ATTEMPTS: Final = 3
_MAX_ID: Final = (1 << 31) - 1
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_BACKOFF: Final = ExponentialBackoff(0.1, 1.0)
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

TRANSIENT_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses of failures after which the same request may succeed."""

_BY_CODE: Final = {
    40401: "the registry does not have the subject; register the schema, or set register=True",
    40402: "the registry does not have this version of the subject",
    40403: "the schema is not registered under the subject; register it, or set register=True",
    40404: "the subject was deleted",
    40406: "this version of the subject was deleted",
    42201: "the registry does not accept the schema as valid",
    42205: "the registry does not allow the operation: is the subject, or all of it, read-only?",
    42208: "the registry does not accept the name of the subject",
    42209: "the schema is too large",
    50003: "the registry cannot forward the request to its leader",
    50004: "the registry has no leader",
}
_BY_STATUS: Final = {
    401: "the registry does not accept the credentials, or it needs some: set auth",
    403: "the credentials do not allow the operation",
    404: "the registry does not have the subject or the schema; is the path of the URL complete?",
    409: "the schema is incompatible with an earlier version of the subject",
    422: "the registry does not accept the request",
    429: "the registry limits the rate of requests",
}


class RegistryError(RepeatableProblem):
    """The cause of a `SerializationError` if the registry did not return a schema id.

    Attributes:
        subject: subject of the schema.
        status: HTTP status; None if there was no response.
        code: `error_code` of the response, such as 40401; None without an error code.
        retriable: True if the same request may succeed later.
    """

    def __init__(
        self,
        text: str,
        *,
        subject: str,
        status: int | None = None,
        code: int | None = None,
        retriable: bool = False,
    ) -> None:
        super().__init__(text, subject, status, code, retriable)
        self.text = text
        self.subject = subject
        self.status = status
        self.code = code
        self.retriable = retriable

    def __str__(self) -> str:
        numbers = []
        if self.status is not None:
            numbers.append(f"status {self.status}")
        if self.code is not None:
            numbers.append(f"code {self.code}")
        return f"subject {self.subject!r}: {self.text}" + (
            f" ({', '.join(numbers)})" if numbers else ""
        )

    def copy(self) -> RegistryError:
        """Return an equal error without traceback."""
        return RegistryError(
            self.text,
            subject=self.subject,
            status=self.status,
            code=self.code,
            retriable=self.retriable,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.text, self.subject, self.status, self.code, self.retriable)
        return _registry_error, given


def _registry_error(
    text: str, subject: str, status: int | None, code: int | None, retriable: bool
) -> RegistryError:
    return RegistryError(text, subject=subject, status=status, code=code, retriable=retriable)


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A schema to which another schema refers.

    Attributes:
        name: the name in the reference: the full name of an Avro type, the `$ref` of a JSON Schema,
            the path of an imported .proto file.
        subject, version: subject and version in the registry.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """The response of the registry.

    Attributes:
        id: the number in the prefix of records, 0 to 2^31 - 1.
        guid: the GUID for the header of records; None if the registry returned no GUID (before
            Confluent Platform 8).
        schema: the text of the schema; None if it was not requested.
        references: the schemas to which the text refers.
        version: version in the subject; None if the registry returned no version.
    """

    id: int
    guid: bytes | None = None
    schema: str | None = None
    references: tuple[SchemaReference, ...] = ()
    version: int | None = None


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """A request for a `RegistryTransport`.

    Attributes:
        url: an https or http URL.
        headers: may contain credentials.
        body: None for a GET request.
        timeout_s: seconds that the transport may take.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    timeout_s: float


@dataclass(frozen=True, slots=True)
class RegistryResponse:
    """Status and body of a response."""

    status: int
    body: bytes = field(repr=False)


RegistryTransport: TypeAlias = Callable[[RegistryRequest], Awaitable[RegistryResponse]]
"""An async function that sends a request instead of the standard library. It must not follow
redirects. It raises OSError or `http.client.HTTPException` if there is no response. After any other
exception, the request is not repeated."""

RegistryAuth: TypeAlias = (
    Credentials | Secret | TokenProvider | Callable[[], Awaitable["str | Secret"]]
)
"""HTTP Basic, a fixed bearer token, or a provider of bearer tokens."""


@dataclass(frozen=True, slots=True)
class SchemaQuestion:
    """A question to the registry, and the key of the cached response.

    Attributes:
        version: version in the subject; None to look up or register `schema`.
        with_guid, with_version: True if the response must contain the GUID or the version.
    """

    subject: str
    kind: str
    schema: str = ""
    references: tuple[SchemaReference, ...] = ()
    register: bool = False
    normalize: bool = False
    version: int | None = None
    with_guid: bool = False
    with_version: bool = False


class Registry:
    """A Schema Registry. Several serializers, producers and threads may share one object.

    Responses are cached: there is one request for each subject and schema, even if many records
    wait for it. After network failures and transient statuses (408, 429, 500, 502, 503, 504) the
    request is repeated, with the next server if there are several, for at most three attempts
    within `timeout_s`. A failure is remembered for a second. Connections are not kept open.

    Args:
        url: an https or http URL, or several URLs for the servers of one registry, including the
            path of the API if there is one.
        auth: `Credentials` for HTTP Basic; a `Secret` or a `TokenProvider` for bearer tokens. The
            value is read for each request.
        tls: context with CAs and client certificate; default: the system's CAs.
        headers: further headers of each request, such as those that Confluent Cloud needs in
            addition to a token.
        cache: maximum number of cached schemas; the oldest is dropped first.
        timeout_s: seconds for all attempts to send a request together.
        allow_cleartext: allow credentials and `headers` over http. If False, they are allowed only
            on the loopback interface.
        transport: sends the requests instead of the standard library.

    Raises:
        ConfigError: an argument is not valid.
    """

    @redacted(ConfigError)
    def __init__(
        self,
        url: str | Sequence[str],
        *,
        auth: RegistryAuth | None = None,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        cache: int = 10_000,
        timeout_s: float = 10.0,
        allow_cleartext: bool = False,
        transport: RegistryTransport | None = None,
    ) -> None:
        self._urls = _checked_urls(url)
        self._auth = _checked_auth(auth)
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise ConfigError(
                f"Registry(tls=<{type(tls).__name__}>): use an ssl.SSLContext or None"
            )
        self._tls = tls
        self._headers = _checked_headers(headers)
        self.cache = _positive("cache", cache, int)
        self._timeout = float(_positive("timeout_s", timeout_s, (int, float)))
        self._transport = transport
        self._rng = random.Random()  # noqa: S311
        self._known: dict[SchemaQuestion, RegisteredSchema] = {}
        self._calls: SharedCalls[SchemaQuestion, RegisteredSchema] = SharedCalls(
            self.cache, False, _described
        )
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        if not allow_cleartext and (auth is not None or self._headers):
            self._check_cleartext()

    def _check_cleartext(self) -> None:
        for url in self._urls:
            parts = urlsplit(url)
            if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
                raise ConfigError(
                    f"Registry(url={url!r}, auth=..., headers=...): http sends the credentials "
                    "unencrypted: use https, or set allow_cleartext=True"
                )

    def __repr__(self) -> str:
        return f"Registry({', '.join(map(repr, self._urls))})"

    async def registered(self, question: SchemaQuestion) -> RegisteredSchema:
        """Return the response to a question. All waiting tasks share one request.

        Raises:
            RegistryError: the request failed.

        Cancellation: the request is cancelled with the last waiting task.
        """
        known = self._known.get(question)
        if known is not None:
            return known
        return await self._calls.result(question, lambda: self._fetched(question))

    async def _fetched(self, question: SchemaQuestion) -> RegisteredSchema:
        found = await self._found(question)
        # Do not use a lock: if a thread held it while another thread forks, the child process could
        # never acquire it.
        while len(self._known) >= self.cache:
            # These errors mean that another thread changed the dict.
            with contextlib.suppress(KeyError, RuntimeError, StopIteration):
                del self._known[next(iter(self._known))]
        self._known[question] = found
        return found

    async def _found(self, question: SchemaQuestion) -> RegisteredSchema:
        subject = quote(question.subject, safe="")
        if question.version is not None:
            path = f"/subjects/{subject}/versions/{question.version}"
            answer = await self._ask("GET", path, None, question.subject)
            return _parsed(answer, question, wants_text=True)
        body = {"schema": question.schema}
        if question.kind != "AVRO":
            body["schemaType"] = question.kind
        document: dict[str, Any] = dict(body)
        if question.references:
            document["references"] = [
                {"name": one.name, "subject": one.subject, "version": one.version}
                for one in question.references
            ]
        query = "?normalize=true" if question.normalize else ""
        found: RegisteredSchema | None = None
        if question.register:
            path = f"/subjects/{subject}/versions{query}"
            answer = await self._ask("POST", path, document, question.subject)
            found = _parsed(answer, question)
        if (
            found is None
            or (question.with_guid and found.guid is None)
            or (question.with_version and found.version is None)
        ):
            # Look the schema up, because not all servers return GUID and version on registration.
            path = f"/subjects/{subject}{query}"
            answer = await self._ask("POST", path, document, question.subject)
            found = _parsed(answer, question)
        if question.with_guid and found.guid is None:
            raise RegistryError(
                "the registry returns no GUID, which framing='header' needs (Confluent Platform 8 "
                "and newer have it): use framing='prefix'",
                subject=question.subject,
            )
        return found

    async def _ask(
        self,
        method: str,
        path: str,
        document: dict[str, Any] | None,
        subject: str,
    ) -> Any:
        """Send the request, with retries, and return the parsed body of the response."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        body = None if document is None else json.dumps(document).encode()
        failure: RegistryError | None = None
        for attempt in range(_ATTEMPTS):
            if failure is not None:
                pause = _BACKOFF.after(attempt - 1, self._rng)
                if loop.time() + pause >= deadline:
                    break
                await asyncio.sleep(pause)
            url = self._urls[attempt % len(self._urls)]
            try:
                async with asyncio.timeout_at(deadline):
                    response = await self._attempt(method, url + path, body, subject)
            except TimeoutError:
                response = self._failure(TimeoutError(), url, subject)
            if isinstance(response, RegistryError):
                failure = response
                if not failure.retriable:
                    break
                continue
            if response.status == http.client.OK:
                return _document(response.body, subject)
            failure = _refused(response, subject)
            if response.status not in TRANSIENT_STATUSES:
                break
        assert failure is not None
        raise failure

    def _failure(self, error: Exception, url: str, subject: str) -> RegistryError:
        """Return the error for an exception raised by an attempt."""
        parts = urlsplit(url)
        where = f"{parts.scheme}://{parts.netloc}"
        if isinstance(error, ssl.SSLCertVerificationError):
            text = f"the certificate of {where} was refused: {error.verify_message}"
            return RegistryError(text, subject=subject)
        reason = type(error).__name__
        if isinstance(error, TimeoutError):
            reason = f"no response within {self._timeout:g} s"
        text = f"the request to {where} failed ({reason})"
        passes = isinstance(error, (OSError, http.client.HTTPException))
        return RegistryError(text, subject=subject, retriable=passes)

    @redacted(AuthenticationError)
    async def _attempt(
        self, method: str, url: str, body: bytes | None, subject: str
    ) -> RegistryResponse | RegistryError:
        """Send one request. Return a failure as an error without frames that hold credentials."""
        headers = await self._request_headers()
        try:
            return await self._send(method, url, headers, body)
        except Exception as error:
            return self._failure(error, url, subject)

    @redacted(AuthenticationError)
    async def _request_headers(self) -> dict[str, str]:
        """Return the headers of a request, including the credentials."""
        found = {"Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE, **self._headers}
        auth = self._auth
        if isinstance(auth, Credentials):
            name, password = auth.pair
            login = f"{name}:{await revealed(password)}".encode()
            found["Authorization"] = "Basic " + base64.b64encode(login).decode()
        elif isinstance(auth, Secret):
            found["Authorization"] = "Bearer " + await revealed(auth)
        elif auth is not None:
            give = auth.token if isinstance(auth, TokenProvider) else auth
            token = await revealed(as_secret(await give()))
            found["Authorization"] = "Bearer " + token
        return found

    async def _send(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
    ) -> RegistryResponse:
        loop = asyncio.get_running_loop()
        slots = self._slots_of(loop)
        if self._transport is not None:
            async with slots:
                request = RegistryRequest(method, url, headers, body, self._timeout)
                return await self._transport(request)
        parts = urlsplit(url)
        plaintext = parts.scheme == "http"
        assert parts.hostname is not None
        await slots.acquire()
        try:
            exchange = HttpExchange(
                HttpRequest(
                    method,
                    parts.hostname,
                    parts.port or (80 if plaintext else 443),
                    f"{parts.path}?{parts.query}" if parts.query else parts.path,
                    body,
                    {**headers, "Connection": "close"},
                    self._tls,
                    self._timeout,
                    _MAX_ANSWER,
                    plaintext,
                ),
                "aiokprod-registry",
            )
        except BaseException:
            slots.release()
            raise

        # Release the slot only when the thread has ended, because it may hang in name resolution.
        def release(_: object) -> None:
            try:
                loop.call_soon_threadsafe(slots.release)
            except RuntimeError:  # the loop has been closed; its slots are no longer used
                return

        exchange.answer.add_done_callback(release)
        try:
            await exchange.ended(loop.time() + self._timeout)
        finally:
            exchange.abort()
        if exchange.running:
            raise TimeoutError
        answer = exchange.answer.result()
        return RegistryResponse(answer.status, answer.body)

    def _slots_of(self, loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
        # No lock is needed, because only the thread of a loop adds that loop.
        slots = self._slots.get(loop)
        if slots is None:
            slots = self._slots.setdefault(loop, asyncio.Semaphore(_MAX_REQUESTS))
        return slots

    def __getstate__(self) -> dict[str, Any]:
        # Leave out the slots of requests, which belong to a process.
        state = dict(self.__dict__)
        del state["_slots"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._slots = weakref.WeakKeyDictionary()


def _described(error: Exception) -> RepeatableProblem:
    """Return the error for an exception raised by a secret, a token provider or a user's
    transport."""
    if isinstance(error, KafkaError):  # the text of these errors is for users
        return RepeatableProblem(f"the request to the registry failed: {error.message}")
    return RepeatableProblem(f"the request to the registry failed ({type(error).__name__})")


def _document(body: bytes, subject: str) -> Any:
    answer = None
    if len(body) <= _MAX_ANSWER:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
    if not isinstance(answer, dict):
        raise RegistryError(
            "the response is not a JSON object, or too large: is this a Schema Registry?",
            subject=subject,
        )
    return answer


def _refused(response: RegistryResponse, subject: str) -> RegistryError:
    """Return the error for a status other than 200."""
    code = None
    try:
        found = json.loads(response.body[:_MAX_ANSWER]).get("error_code")
        if type(found) is int and abs(found) <= 1_000_000 and found != response.status:
            code = found
    except (ValueError, RecursionError, AttributeError):
        code = None
    status = response.status
    text = _BY_CODE.get(code or 0) or _BY_STATUS.get(status)
    if text is None:
        text = "the registry failed" if status >= 500 else "the registry refused the request"
        if 300 <= status < 400:
            text = "the registry redirects the request, which is not followed: correct the URL"
    return RegistryError(
        text, subject=subject, status=status, code=code, retriable=status in TRANSIENT_STATUSES
    )


def _parsed(answer: Any, question: SchemaQuestion, *, wants_text: bool = False) -> RegisteredSchema:
    """Return the schema in a response of the registry.

    Raises:
        RegistryError: a field is missing or has another type.
    """

    def invalid(name: str) -> RegistryError:
        return RegistryError(
            f"the response has no valid {name}: is this a Schema Registry?",
            subject=question.subject,
        )

    number, guid, text = answer.get("id"), answer.get("guid"), answer.get("schema")
    if type(number) is not int or not 0 <= number <= _MAX_ID:
        raise invalid("id")
    try:
        guid = None if guid is None else uuid.UUID(guid).bytes
    except (ValueError, AttributeError, TypeError):
        guid = b""
    if guid == b"":
        raise invalid("guid")
    if wants_text and not isinstance(text, str):
        raise invalid("schema")
    version = answer.get("version")
    if version is not None and type(version) is not int:
        raise invalid("version")
    references: tuple[SchemaReference, ...] = ()
    if wants_text:
        found = [_reference(one) for one in answer.get("references") or ()]
        if None in found:
            raise invalid("references")
        references = tuple(one for one in found if one is not None)
    return RegisteredSchema(number, guid, text if wants_text else None, references, version)


def _reference(found: Any) -> SchemaReference | None:
    if not isinstance(found, dict):
        return None
    name, subject, version = found.get("name"), found.get("subject"), found.get("version")
    if isinstance(name, str) and isinstance(subject, str) and type(version) is int:
        return SchemaReference(name, subject, version)
    return None


def _checked_urls(url: object) -> tuple[str, ...]:
    given = [url] if isinstance(url, str) else url
    if not isinstance(given, Sequence) or not given or isinstance(given, bytes):
        raise ConfigError("Registry(url=...): use one URL or a list of URLs")
    return tuple(_checked_url(one) for one in given)


def _checked_url(url: object) -> str:
    # Do not include the URL in errors, because it may contain a password.
    if not isinstance(url, str):
        raise ConfigError(f"Registry(url=<{type(url).__name__}>): use a str")
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        port_is_valid = False
    if not port_is_valid:
        raise ConfigError("Registry(url=...): its port is not valid")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("Registry(url=...): use a URL of https or http, with a host")
    if "@" in parts.netloc:
        raise ConfigError(
            "Registry(url=...): has a user name; set auth=Credentials(user, password) instead"
        )
    if parts.query or parts.fragment or any(ord(c) <= 32 or ord(c) > 126 for c in url):
        raise ConfigError(
            "Registry(url=...): must have no query, fragment, space or character that is not ASCII"
        )
    return url.rstrip("/")


def _checked_auth(auth: Any) -> Any:
    if auth is None or isinstance(auth, (Credentials, Secret, TokenProvider)) or callable(auth):
        return auth
    raise ConfigError(
        f"Registry(auth=<{type(auth).__name__}>): use Credentials(user, password), a Secret with a "
        "bearer token, or a token provider"
    )


def _checked_headers(headers: Any) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise ConfigError(f"Registry(headers=<{type(headers).__name__}>): use a mapping")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError("Registry(headers=...): names and values must be str")
        if name.lower() == "authorization":
            raise ConfigError("Registry(headers=...): set auth instead of Authorization")
        if any(c in name + value for c in "\r\n\0"):
            raise ConfigError(f"Registry(headers=...): {name!r} contains a line break")
    return dict(headers)


def _positive(name: str, value: Any, kinds: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        raise ConfigError(f"Registry({name}={value!r}): use a number greater than 0")
    return value
