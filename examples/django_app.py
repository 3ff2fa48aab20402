"""A Django service that sends records to Kafka, under WSGI and ASGI servers.

    pip install aiokprod django gunicorn
    KAFKA_BOOTSTRAP=localhost:9092 gunicorn examples.django_app:wsgi --workers 2 --threads 8
    KAFKA_BOOTSTRAP=localhost:9092 uvicorn examples.django_app:asgi

The module creates the producer, and the first record of each process starts it. A process sends its
pending records before it exits, within close_timeout_ms. In a project, the producer belongs in a
separate module, next to the settings.
"""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from aiokprod import Blocking, KafkaError
from aiokprod.app import http_status

TOPIC = "events"
DRAIN_S = float(os.environ.get("DRAIN_S", "15"))

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY=os.environ.get("SECRET_KEY", "x")
    )
    django.setup()

producer = Blocking(
    bootstrap_servers=os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
    close_timeout_ms=int(DRAIN_S * 1000),
    max_block_ms=5_000,
)


def failed(error: KafkaError) -> JsonResponse:
    """Returns an error response: Kafka has not, or may not have, stored the record."""
    response = http_status(error)
    return JsonResponse(response.body, status=response.status, headers=response.headers)


def record_event(request: HttpRequest, user: str) -> JsonResponse:
    """Stores the request body and responds once Kafka has stored it."""
    try:
        metadata = producer.send(TOPIC, request.body, key=user.encode(), timeout=5)
    except KafkaError as error:
        return failed(error)
    return JsonResponse({"partition": metadata.partition, "offset": metadata.offset}, status=201)


def record_click(request: HttpRequest, user: str) -> JsonResponse:
    """Accepts the body and sends it later."""
    try:
        producer.submit(TOPIC, request.body, key=user.encode())
    except KafkaError as error:
        return failed(error)
    return JsonResponse({}, status=202)


def ready(request: HttpRequest) -> JsonResponse:
    """Responds to the readinessProbe of Kubernetes."""
    producer.start()
    health = producer.health()
    return JsonResponse({"state": health.state}, status=503 if health.state != "running" else 200)


urlpatterns = [
    path("events/<str:user>", require_POST(record_event)),
    path("clicks/<str:user>", require_POST(record_click)),
    path("kafka/readyz", ready),
]
wsgi = get_wsgi_application()
django_asgi = get_asgi_application()


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """Runs Django and handles the end of the ASGI lifespan, which Django itself ignores.

    uvicorn ends its process with the signal that it received, so that no `atexit` function runs.
    """
    if scope["type"] != "lifespan":
        await django_asgi(scope, receive, send)
        return
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await asyncio.to_thread(producer.close, DRAIN_S)
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


# Workers of gunicorn --preload share the memory of everything loaded so far, and exit faster.
gc.freeze()
