"""A Litestar service with a producer, probes and a drain at shutdown.

    pip install aiokprod litestar granian
    KAFKA_BOOTSTRAP=localhost:9092 granian --interface asgi examples.litestar_app:app

granian waits for the lifespan function, and so for the drain, before a worker ends.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Request, Response, asgi, post
from litestar.datastructures import State

from aiokprod import JsonSerializer, KafkaError, Producer, StringSerializer
from aiokprod.app import http_status, probes, serving

TOPIC = "events"
DRAIN_S = float(os.environ.get("DRAIN_S", "15"))

producer = Producer(
    bootstrap_servers=os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
    key_serializer=StringSerializer(),
    value_serializer=JsonSerializer(),
    max_block_ms=5_000,
)


@asynccontextmanager
async def lifespan(app: Litestar) -> AsyncIterator[None]:
    """Starts the producer with the application and drains it at shutdown."""
    async with serving(producer, warm=[TOPIC], drain_s=DRAIN_S):
        app.state.producer = producer
        yield


@post("/events/{user:str}")
async def record_event(user: str, data: dict[str, Any], state: State) -> Response[dict[str, Any]]:
    """Stores an event and answers once Kafka has it."""
    metadata = await state.producer.send(TOPIC, data, key=user, timeout=5.0)
    return Response({"partition": metadata.partition, "offset": metadata.offset}, status_code=201)


@post("/clicks/{user:str}")
async def record_click(user: str, data: dict[str, Any], state: State) -> Response[dict[str, Any]]:
    """Accepts an event that is sent later. If the process is asked to end, the drain sends it."""
    await state.producer.submit(TOPIC, data, key=user)
    return Response({}, status_code=202)


def kafka_failed(_: Request[Any, Any, Any], error: KafkaError) -> Response[dict[str, object]]:
    """The response for a record that Kafka does not have, or may not have."""
    response = http_status(error)
    return Response(response.body, status_code=response.status, headers=response.headers)


app = Litestar(
    [record_event, record_click, asgi("/kafka", is_mount=True, copy_scope=True)(probes(producer))],
    lifespan=[lifespan],
    exception_handlers={KafkaError: kafka_failed},
    # Litestar's default writes log entries in another thread, which ends before the last of them:
    # the report of the drain. Without it, the server or the program configures logging.
    logging_config=None,
)
