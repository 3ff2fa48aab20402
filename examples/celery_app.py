"""Celery tasks that send records to Kafka.

    pip install aiokprod celery
    KAFKA_BOOTSTRAP=localhost:9092 celery -A examples.celery_app worker

The producer is created with the module, before Celery forks its worker processes, and started by
the first record of each process. A worker process that ends sends what is pending.
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
    close_timeout_ms=5_000,  # Celery kills its processes after a few seconds
)


@app.task(bind=True, acks_late=True, max_retries=5)
def record_order(self: Any, order: dict[str, Any]) -> int | None:
    """Stores an order. The task is done when Kafka has the record."""
    try:
        return producer.send(TOPIC, order, timeout=10).offset
    except KafkaError as error:
        if error.outcome is Outcome.UNKNOWN:
            raise  # it may be stored, and to repeat the task may store it twice
        raise self.retry(exc=error, countdown=5) from error


@app.task
def record_click(click: dict[str, Any]) -> None:
    """Sends a record without waiting; failures are logged."""
    producer.submit(TOPIC, click)


def drain(**_: object) -> None:
    """Send what is pending at the end of a process."""
    producer.close(5)


worker_process_shutdown.connect(drain)  # prefork
worker_shutdown.connect(drain)  # solo and threads: the worker itself sends
