"""The client of the Schema Registry: HTTP with a local server, errors, credentials, and
settings."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aiokprod import ConfigError, Credentials, Secret
from aiokprod.serdes import Registry, RegistryError
from aiokprod.serdes._shared_calls import RepeatableProblem
from aiokprod.serdes.registry import SchemaQuestion
from tests.security.certs import Authority
from tests.serdes.memory_registry import URL, MemoryRegistry
from tests.virtual_time import in_virtual_time

CA = Authority("registry CA", 21)
QUESTION = SchemaQuestion("users-value", "AVRO", '"string"')
FOUND = {"id": 7, "guid": "00000000-0000-0000-0000-000000000007", "version": 2}


class Server:
    """The state of an HTTP or HTTPS server that responds with `status` and `answer`."""

    def __init__(self) -> None:
        self.answer: Any = FOUND
        self.status = 200
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.location = ""
        self.port = 0


@pytest.fixture(params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def server(scheme: str, tmp_path: Path) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.seen.append((self.command, self.path, dict(self.headers), body))
            content = state.answer
            if not isinstance(content, bytes):
                content = json.dumps(content).encode()
            self.send_response(state.status)
            if state.location:
                self.send_header("Location", state.location)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Log nothing to standard error."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CA.issue("127.0.0.1", number=96).write(tmp_path, "sr"))
        http.socket = context.wrap_socket(http.socket, server_side=True)
    state.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


def registry_of(server: Server, scheme: str, path: str = "", **options: Any) -> Registry:
    tls = ssl.create_default_context(cadata=CA.pem) if scheme == "https" else None
    return Registry(f"{scheme}://127.0.0.1:{server.port}{path}", tls=tls, **options)


def ask(registry: Registry, question: SchemaQuestion = QUESTION) -> Any:
    return asyncio.run(registry.registered(question))


def test_request_and_answer(server: Server, scheme: str) -> None:
    registry = registry_of(server, scheme, "/apis/v7/", headers={"target-sr-cluster": "lsrc-1"})
    found = ask(registry)
    assert (found.id, found.version, found.guid) == (7, 2, b"\0" * 15 + b"\7")
    assert ask(registry) is found
    ((method, path, headers, body),) = server.seen
    assert (method, path) == ("POST", "/apis/v7/subjects/users-value")
    assert json.loads(body) == {"schema": '"string"'}
    assert headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
    assert headers["target-sr-cluster"] == "lsrc-1"
    assert "Authorization" not in headers


async def give_token() -> Secret:
    return Secret("canary-token")


class Provider:
    async def token(self) -> str:
        return "canary-token"


BASIC = "Basic " + base64.b64encode(b"me:canary-p\xc3\xa4ss").decode()


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        (Credentials("me", "canary-päss"), BASIC),
        (Secret("canary-token"), "Bearer canary-token"),
        (Provider(), "Bearer canary-token"),
        (give_token, "Bearer canary-token"),
    ],
)
def test_credentials(server: Server, scheme: str, auth: Any, expected: str) -> None:
    registry = registry_of(server, scheme, auth=auth)
    ask(registry)
    assert server.seen[0][2]["Authorization"] == expected
    assert "canary" not in repr(registry)


def test_replaced_credentials_are_used(server: Server, scheme: str) -> None:
    credentials = Credentials("me", "canary-first")
    registry = registry_of(server, scheme, auth=credentials, cache=1)
    ask(registry)
    credentials.replace("you", "canary-second")
    ask(registry, SchemaQuestion("other", "AVRO", '"string"'))
    login = base64.b64decode(server.seen[1][2]["Authorization"].removeprefix("Basic "))
    assert login == b"you:canary-second"


@pytest.mark.parametrize(
    ("status", "answer", "text", "code"),
    [
        (401, {"error_code": 401, "message": "canary"}, "does not accept the credentials", None),
        (403, b"canary", "do not allow", None),
        (404, {"error_code": 40401, "message": "canary"}, "does not have the subject", 40401),
        (404, {"error_code": 40403}, "is not registered under the subject", 40403),
        (404, b"<html>canary", "is the path of the URL complete", None),
        (409, {"error_code": 409, "message": "canary"}, "incompatible with an earlier", None),
        (422, {"error_code": 42201, "message": "canary"}, "does not accept the schema", 42201),
        (422, {"error_code": "canary"}, "does not accept the request", None),
        (302, b"", "redirects", None),
        (418, [], "refused the request", None),
    ],
)
def test_refusals(
    server: Server, scheme: str, status: int, answer: Any, text: str, code: int | None
) -> None:
    server.status, server.answer = status, answer
    server.location = "https://elsewhere.example/"
    with pytest.raises(RegistryError, match=text) as caught:
        ask(registry_of(server, scheme, auth=Secret("canary-token")))
    error = caught.value
    assert (error.subject, error.status, error.code) == ("users-value", status, code)
    assert not error.retriable
    assert f"status {status}" in str(error)
    assert "canary" not in str(error)
    assert len(server.seen) == 1
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code) == (str(error), code)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"canary", "not a JSON object"),
        ([], "not a JSON object"),
        ({}, "no valid id"),
        ({"id": True}, "no valid id"),
        ({"id": 1 << 31}, "no valid id"),
        ({"id": 1, "guid": "canary"}, "no valid guid"),
        ({"id": 1, "guid": 5}, "no valid guid"),
        ({"id": 1, "version": "canary"}, "no valid version"),
    ],
)
def test_answers_of_something_else(server: Server, scheme: str, answer: Any, text: str) -> None:
    server.answer = answer
    with pytest.raises(RegistryError, match=text):
        ask(registry_of(server, scheme))


@pytest.mark.parametrize("scheme", ["https"])
def test_certificate_that_is_not_trusted(server: Server) -> None:
    registry = Registry(f"https://127.0.0.1:{server.port}", auth=Secret("canary-token"))
    with pytest.raises(RegistryError, match=r"certificate of https://127.0.0.1") as caught:
        ask(registry)
    assert not caught.value.retriable


def test_next_server_is_asked_if_one_is_down(server: Server, scheme: str) -> None:
    tls = ssl.create_default_context(cadata=CA.pem) if scheme == "https" else None
    urls = [f"{scheme}://127.0.0.1:1", f"{scheme}://127.0.0.1:{server.port}"]
    assert ask(Registry(urls, tls=tls)).id == 7


@in_virtual_time
async def test_failures_that_pass_are_repeated_and_others_not() -> None:
    server = MemoryRegistry()
    server.register("users-value", '"string"')
    server.refusals = [(503, {}), OSError("canary")]
    registry = Registry(URL, transport=server)
    assert (await registry.registered(QUESTION)).id == 1
    assert len(server.requests) == 3
    server.refusals = [(503, {"error_code": 50003}), (429, {}), (500, {})]
    with pytest.raises(RegistryError, match="the registry failed") as caught:
        await registry.registered(SchemaQuestion("others", "AVRO", '"string"'))
    assert caught.value.retriable
    assert len(server.requests) == 6


@in_virtual_time
async def test_error_of_a_transport_or_a_provider_is_named_by_class_only() -> None:
    server = MemoryRegistry()
    server.refusals = [KeyError("canary")]
    with pytest.raises(RegistryError, match="KeyError") as caught:
        await Registry(URL, transport=server).registered(QUESTION)
    assert not caught.value.retriable

    async def failing() -> str:
        raise ValueError("canary")

    registry = Registry(URL, transport=server, auth=failing)
    with pytest.raises(RepeatableProblem, match="ValueError"):
        await registry.registered(QUESTION)


@in_virtual_time
async def test_cache_forgets_the_oldest() -> None:
    server = MemoryRegistry()
    registry = Registry(URL, transport=server, cache=2)
    for name in ("a", "b", "c", "c", "b", "a"):
        await registry.registered(SchemaQuestion(name, "AVRO", '"string"', register=True))
    assert [one.split("/")[2] for one in server.requests] == ["a", "b", "c", "a"]


@in_virtual_time
async def test_four_requests_at_a_time() -> None:
    server = MemoryRegistry(delay=1.0)
    registry = Registry(URL, transport=server)
    questions = [SchemaQuestion(str(n), "AVRO", '"string"', register=True) for n in range(12)]
    waiting = asyncio.gather(*map(registry.registered, questions))
    for expected in (4, 8, 12):
        await asyncio.sleep(0.5)
        assert len(server.requests) == expected
        await asyncio.sleep(0.5)
    assert len(await waiting) == 12


def test_copy_of_a_pickled_registry_keeps_its_answers() -> None:
    registry = Registry(URL, auth=Secret.from_env("TOKEN"))
    registry._known[QUESTION] = found = asyncio.run(answered())
    copy = pickle.loads(pickle.dumps(registry))
    assert repr(copy) == repr(registry) == f"Registry({URL!r})"
    assert ask(copy) == found


async def answered() -> Any:
    return await Registry(URL, transport=MemoryRegistry()).registered(
        SchemaQuestion("users-value", "AVRO", '"string"', register=True)
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"url": ""}, "https or http"),
        ({"url": []}, "one URL"),
        ({"url": 5}, "one URL"),
        ({"url": "ftp://a"}, "https or http"),
        ({"url": "https://me:canary@a"}, "user name"),
        ({"url": "https://a:99999"}, "port"),
        ({"url": "https://a?b"}, "no query"),
        ({"url": "https://a", "auth": "canary"}, "auth=<str>"),
        ({"url": "https://a", "tls": True}, "tls=<bool>"),
        ({"url": "https://a", "cache": 0}, "cache=0"),
        ({"url": "https://a", "timeout_s": -1}, "timeout_s=-1"),
        ({"url": "https://a", "headers": {"Authorization": "canary"}}, "set auth"),
        ({"url": "https://a", "headers": {"a": "b\r\nc"}}, "line break"),
        ({"url": "https://a", "headers": ["a"]}, "headers=<list>"),
        ({"url": "http://a", "auth": Secret("canary-token")}, "allow_cleartext"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        Registry(**arguments)
    assert "canary" not in str(caught.value)


def test_cleartext_is_allowed_to_loopback_or_if_it_is_asked_for() -> None:
    Registry("http://localhost:8081", auth=Secret("canary-token"))
    Registry("http://a", auth=Secret("canary-token"), allow_cleartext=True)
