"""A Starlette service with a producer, probes and a drain at shutdown.

pip install aiokprod starlette hypercorn
KAFKA_BOOTSTRAP=localhost:9092 hypercorn examples.starlette_app:app --graceful-timeout 8
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from aiokprod import KafkaError, Producer
from aiokprod.app import http_status, probes, serving

TOPIC = "events"
DRAIN_S = float(os.environ.get("DRAIN_S", "15"))

# The constructor opens no connection and needs no event loop. `serving` starts the producer.
producer = Producer(
    bootstrap_servers=os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
    max_block_ms=5_000,
)


class State(TypedDict):
    """The attributes of `request.state`."""

    producer: Producer[bytes, bytes]


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    """Starts the producer with the application and drains it at shutdown."""
    async with serving(producer, warm=[TOPIC], drain_s=DRAIN_S):
        yield {"producer": producer}


async def record_event(request: Request) -> Response:
    """Stores the request body and responds once Kafka has stored it."""
    key = request.path_params["user"].encode()
    metadata = await request.state.producer.send(TOPIC, await request.body(), key=key, timeout=5.0)
    return JSONResponse({"partition": metadata.partition, "offset": metadata.offset}, 201)


async def record_click(request: Request) -> Response:
    """Accepts the body and sends it later, at the latest in the drain at shutdown."""
    key = request.path_params["user"].encode()
    await request.state.producer.submit(TOPIC, await request.body(), key=key)
    return Response(status_code=202)


async def kafka_failed(request: Request, error: Exception) -> Response:
    """Returns an error response: Kafka has not, or may not have, stored the record."""
    assert isinstance(error, KafkaError)
    response = http_status(error)
    return JSONResponse(response.body, response.status, response.headers)


app = Starlette(
    lifespan=lifespan,
    exception_handlers={KafkaError: kafka_failed},
    routes=[
        Route("/events/{user}", record_event, methods=["POST"]),
        Route("/clicks/{user}", record_click, methods=["POST"]),
        Mount("/kafka", probes(producer)),
    ],
)
