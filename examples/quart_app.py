"""A Quart service with a producer, probes and a drain at shutdown.

pip install aiokprod quart hypercorn
KAFKA_BOOTSTRAP=localhost:9092 hypercorn examples.quart_app:app --graceful-timeout 8
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any

from quart import Quart, request

from aiokprod import KafkaError, Producer
from aiokprod.app import Probe, http_status, probes, serving

TOPIC = "events"
DRAIN_S = float(os.environ.get("DRAIN_S", "15"))

producer = Producer(
    bootstrap_servers=os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
    max_block_ms=5_000,
)
kafka = probes(producer)
app = Quart(__name__)
# Quart cancels the shutdown functions after this time, so it must exceed the drain time.
app.config["SHUTDOWN_TIMEOUT"] = DRAIN_S + 5


@app.while_serving
async def run_producer() -> AsyncGenerator[None, None]:
    """Starts the producer with the application and drains it at shutdown."""
    async with serving(producer, warm=[TOPIC], drain_s=DRAIN_S):
        yield


@app.post("/events/<user>")
async def record_event(user: str) -> tuple[dict[str, Any], int]:
    """Stores the request body and responds once Kafka has stored it."""
    body: bytes = await request.body
    metadata = await producer.send(TOPIC, body, key=user.encode(), timeout=5.0)
    return {"partition": metadata.partition, "offset": metadata.offset}, 201


@app.post("/clicks/<user>")
async def record_click(user: str) -> tuple[dict[str, Any], int]:
    """Accepts the body and sends it later, at the latest in the drain at shutdown."""
    body: bytes = await request.body
    await producer.submit(TOPIC, body, key=user.encode())
    return {}, 202


@app.errorhandler(KafkaError)
async def kafka_failed(error: KafkaError) -> tuple[dict[str, object], int, dict[str, str]]:
    """Returns an error response: Kafka has not, or may not have, stored the record."""
    response = http_status(error)
    return response.body, response.status, response.headers


def respond(probe: Probe) -> tuple[dict[str, object], int]:
    """Returns the response for a probe."""
    return probe.body, probe.status


@app.get("/kafka/livez")
async def live() -> tuple[dict[str, object], int]:
    """Responds to the livenessProbe of Kubernetes."""
    return respond(kafka.live())


@app.get("/kafka/readyz")
async def ready() -> tuple[dict[str, object], int]:
    """Responds to the readinessProbe of Kubernetes."""
    return respond(kafka.ready())


@app.get("/kafka/startupz")
async def started() -> tuple[dict[str, object], int]:
    """Responds to the startupProbe of Kubernetes."""
    return respond(kafka.started())
