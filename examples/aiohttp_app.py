"""An aiohttp service that responds once Kafka has stored the event, with probes and a drain.

    pip install aiokprod aiohttp
    KAFKA_BOOTSTRAP=localhost:9092 python -m examples.aiohttp_app

After SIGTERM, the server waits for requests (SHUTDOWN_S), then the producer drains (DRAIN_S).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from aiokprod import KafkaError, Producer
from aiokprod.app import Probe, Probes, http_status, serving

TOPIC = "clicks"
PRODUCER: web.AppKey[Producer[bytes, bytes]] = web.AppKey("producer")
DRAIN_S = float(os.environ.get("DRAIN_S", "15"))
SHUTDOWN_S = 8.0


async def run_producer(app: web.Application) -> AsyncIterator[None]:
    """Starts the producer with the application and drains it at shutdown."""
    servers = os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092")
    producer = Producer(bootstrap_servers=servers, max_block_ms=5_000)
    async with serving(producer, warm=[TOPIC], drain_s=DRAIN_S):
        app[PRODUCER] = producer
        yield


async def event(request: web.Request) -> web.Response:
    """Stores the unchanged request body. The visitor in the path is the key."""
    body = await request.read()
    visitor = request.match_info["visitor"].encode()
    metadata = await request.app[PRODUCER].send(TOPIC, body, key=visitor, timeout=5.0)
    return web.json_response(
        {"partition": metadata.partition, "offset": metadata.offset}, status=201
    )


async def click(request: web.Request) -> web.Response:
    """Accepts the body and sends it later, at the latest in the drain at shutdown."""
    body = await request.read()
    visitor = request.match_info["visitor"].encode()
    await request.app[PRODUCER].submit(TOPIC, body, key=visitor)
    return web.Response(status=202)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def kafka_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Returns an error response if Kafka has not, or may not have, stored the record."""
    try:
        return await handler(request)
    except KafkaError as error:
        failed = http_status(error)
        return web.json_response(failed.body, status=failed.status, headers=failed.headers)


def probe(ask: Callable[[Probes], Probe]) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Returns a handler for a Kubernetes probe."""

    async def handler(request: web.Request) -> web.Response:
        answer = ask(Probes(request.app[PRODUCER]))
        return web.json_response(answer.body, status=answer.status)

    return handler


def make_app() -> web.Application:
    """Returns the application. Tests run it on another port."""
    app = web.Application(middlewares=[kafka_errors])
    app.cleanup_ctx.append(run_producer)
    app.router.add_post("/events/{visitor}", event)
    app.router.add_post("/clicks/{visitor}", click)
    app.router.add_get("/kafka/livez", probe(Probes.live))
    app.router.add_get("/kafka/readyz", probe(Probes.ready))
    app.router.add_get("/kafka/startupz", probe(Probes.started))
    return app


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "8080"))
    web.run_app(make_app(), port=port, shutdown_timeout=SHUTDOWN_S)
