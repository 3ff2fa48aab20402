"""An aiohttp service whose handler answers once Kafka has the event.

pip install aiokprod aiohttp
KAFKA_BOOTSTRAP=localhost:9092 python -m examples.aiohttp_app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from aiohttp import web

from aiokprod import KafkaError, Producer

TOPIC = "clicks"
PRODUCER: web.AppKey[Producer[bytes, bytes]] = web.AppKey("producer")


async def run_producer(app: web.Application) -> AsyncIterator[None]:
    """Starts the producer with the application and drains it at shutdown."""
    servers = os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092")
    async with Producer(bootstrap_servers=servers) as producer:
        app[PRODUCER] = producer
        yield


async def click(request: web.Request) -> web.Response:
    """Stores the request body as it is; the visitor in the path is the key."""
    body = await request.read()
    visitor = request.match_info["visitor"].encode()
    try:
        metadata = await request.app[PRODUCER].send(TOPIC, body, key=visitor, timeout=5.0)
    except KafkaError as error:
        return web.json_response({"error": error.message}, status=503)
    return web.json_response({"partition": metadata.partition, "offset": metadata.offset})


def make_app() -> web.Application:
    """The application; tests run it on another port."""
    app = web.Application()
    app.cleanup_ctx.append(run_producer)
    app.router.add_post("/clicks/{visitor}", click)
    return app


if __name__ == "__main__":
    web.run_app(make_app())
