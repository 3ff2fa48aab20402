"""Celery tasks that send records to Kafka.

    pip install aiokprod celery
    KAFKA_BOOTSTRAP=localhost:9092 celery -A examples.celery_app worker

The module creates the producer before Celery forks its worker processes. The first record of each
process starts it. A worker process sends its pending records before it exits.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_shutdown, worker_shutdown

from aiokprod import Blocking, JsonSerializer, KafkaError, Outcome

TOPIC = "tasks"

app = Celery("examples.celery_app", broker=os.environ.get("CELERY_BROKER", "memory://"))
producer = Blocking(
    bootstrap_servers=os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
    value_serializer=JsonSerializer(),
    close_timeout_ms=5_000,  # Celery kills a stopping process after a few seconds
)


@app.task(bind=True, acks_late=True, max_retries=5)
def record_order(self: Any, order: dict[str, Any]) -> int | None:
    """Stores an order. The task is done once Kafka has stored the record."""
    try:
        return producer.send(TOPIC, order, timeout=10).offset
    except KafkaError as error:
        if error.outcome is Outcome.UNKNOWN:
            raise  # the record may be stored, and a retry could store it twice
        raise self.retry(exc=error, countdown=5) from error


@app.task
def record_click(click: dict[str, Any]) -> None:
    """Sends a record without waiting. Failures are logged."""
    producer.submit(TOPIC, click)


def drain(**_: object) -> None:
    """Sends the pending records at the end of a process."""
    producer.close(5)


worker_process_shutdown.connect(drain)  # prefork
worker_shutdown.connect(drain)  # solo and threads: the worker process itself sends records
