"""A FastAPI service that responds once Kafka has stored the event, with probes and a drain.

    pip install aiokprod fastapi uvicorn
    KAFKA_BOOTSTRAP=localhost:9092 uvicorn examples.fastapi_app:app --timeout-graceful-shutdown 8

The application has one producer, so that concurrent requests share batches. After SIGTERM, the
server first waits for requests (8 s, above), then the producer drains (DRAIN_S). The sum must be
less than the 30 s after which Kubernetes kills the container.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from aiokprod import JsonSerializer, KafkaError, Producer, StringSerializer
from aiokprod.app import http_status, probes, serving

logger = logging.getLogger(__name__)

TOPIC = "events"
DRAIN_S = float(os.environ.get("DRAIN_S", "15"))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Starts the producer with the application and drains it at shutdown."""
    producer = Producer(
        bootstrap_servers=os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
        key_serializer=StringSerializer(),
        value_serializer=JsonSerializer(),
        delivery_timeout_ms=10_000,  # shorter than the timeout of the HTTP client
        request_timeout_ms=5_000,
        max_block_ms=5_000,
    )
    async with serving(producer, warm=[TOPIC], drain_s=DRAIN_S) as app.state.producer:
        yield


def producer_of(request: Request) -> Producer[str, Any]:
    """Returns the producer, as a dependency of the handlers."""
    producer: Producer[str, Any] = request.app.state.producer
    return producer


Kafka = Annotated[Producer[str, Any], Depends(producer_of)]

app = FastAPI(lifespan=lifespan)
app.mount("/kafka", probes(lambda: getattr(app.state, "producer", None)))


@app.exception_handler(KafkaError)
async def kafka_failed(request: Request, error: KafkaError) -> JSONResponse:
    """Returns an error response: Kafka has not, or may not have, stored the event."""
    response = http_status(error)
    if response.status == 500:
        logger.error("%s", error)  # the cause is a permission, a setting or a bug
    return JSONResponse(response.body, response.status, response.headers)


@app.post("/events/{user}", status_code=201)
async def record_event(user: str, event: dict[str, Any], producer: Kafka) -> dict[str, Any]:
    """Stores an event. The user is the key, so events of one user keep their order."""
    metadata = await producer.send(TOPIC, event, key=user)
    return {"partition": metadata.partition, "offset": metadata.offset}


@app.post("/sync-events/{user}", status_code=201)
def record_event_in_thread(user: str, event: dict[str, Any], producer: Kafka) -> dict[str, Any]:
    """Stores an event from synchronous code, which FastAPI runs in a thread."""
    metadata = producer.send_threadsafe(TOPIC, event, key=user).result()
    return {"partition": metadata.partition, "offset": metadata.offset}


@app.post("/clicks/{user}", status_code=202)
async def record_click(user: str, event: dict[str, Any], producer: Kafka) -> None:
    """Accepts an event and sends it later, at the latest in the drain at shutdown."""
    await producer.submit(TOPIC, event, key=user)
