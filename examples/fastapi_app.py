"""A FastAPI service whose handler answers once Kafka has the event.

    pip install aiokprod fastapi uvicorn
    KAFKA_BOOTSTRAP=localhost:9092 uvicorn examples.fastapi_app:app

The application has one producer, so that requests that arrive together share batches.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request

from aiokprod import JsonSerializer, KafkaError, Outcome, Producer, StringSerializer

TOPIC = "events"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Starts the producer with the application and drains it at shutdown."""
    producer = Producer(
        bootstrap_servers=os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
        key_serializer=StringSerializer(),
        value_serializer=JsonSerializer(),
        delivery_timeout_ms=10_000,  # fail while the HTTP client still waits
        request_timeout_ms=5_000,
        max_block_ms=5_000,
    )
    async with producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/events/{user}", status_code=201)
async def record_event(user: str, event: dict[str, Any], request: Request) -> dict[str, Any]:
    """Stores an event. The user is the key, so events of one user keep their order."""
    producer = request.app.state.producer
    try:
        metadata = await producer.send(TOPIC, event, key=user)
    except KafkaError as error:
        # NOT_SENT and REJECTED: not in the topic, so the client may repeat the request.
        # UNKNOWN: it may be in the topic, and repeating the request may duplicate it.
        again = error.outcome is not Outcome.UNKNOWN
        raise HTTPException(503, {"error": error.message, "safe_to_repeat": again}) from error
    return {"partition": metadata.partition, "offset": metadata.offset}
