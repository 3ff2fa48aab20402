"""A Litestar service with a producer, probes and a drain at shutdown.

    pip install aiokprod litestar granian
    KAFKA_BOOTSTRAP=localhost:9092 granian --interface asgi examples.litestar_app:app

Before a worker exits, granian waits for the lifespan function, and thus for the drain.
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
    """Stores an event and responds once Kafka has stored it."""
    metadata = await state.producer.send(TOPIC, data, key=user, timeout=5.0)
    return Response({"partition": metadata.partition, "offset": metadata.offset}, status_code=201)


@post("/clicks/{user:str}")
async def record_click(user: str, data: dict[str, Any], state: State) -> Response[dict[str, Any]]:
    """Accepts an event and sends it later, at the latest in the drain at shutdown."""
    await state.producer.submit(TOPIC, data, key=user)
    return Response({}, status_code=202)


def kafka_failed(_: Request[Any, Any, Any], error: KafkaError) -> Response[dict[str, object]]:
    """Returns an error response: Kafka has not, or may not have, stored the record."""
    response = http_status(error)
    return Response(response.body, status_code=response.status, headers=response.headers)


app = Litestar(
    [record_event, record_click, asgi("/kafka", is_mount=True, copy_scope=True)(probes(producer))],
    lifespan=[lifespan],
    exception_handlers={KafkaError: kafka_failed},
    # Litestar's default writes log entries in another thread, which ends before the drain writes
    # its report. With None, the server or the program configures logging.
    logging_config=None,
)
