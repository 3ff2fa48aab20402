"""CloudEvents in Kafka records. Needs the extra `cloudevents` (cloudevents 2).

Source: "Kafka Protocol Binding for CloudEvents" 1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from aiokprod.errors import ConfigError, SerializationError
from aiokprod.records import Header
from aiokprod.serdes._extras import extra

if TYPE_CHECKING:
    from aiokprod import Producer, RecordMetadata

__all__ = ["event_record", "send_event"]

Mode = Literal["binary", "structured"]


def event_record(
    event: Any, *, mode: Mode = "binary", format: Any = None
) -> tuple[bytes | str | None, bytes | None, list[Header]]:
    """Return key, value and headers of the record for an event, for `submit` and `send_many`.

    In binary mode, the attributes are headers (`ce_id`, `ce_type`, ...) and the value is the data
    of the event, or null without data. In structured mode, the value is the whole event. The key is
    the extension attribute `partitionkey`, or None without this attribute.

    Args:
        event: a `CloudEvent` of cloudevents 2.
        format: a format of cloudevents; default: its JSON format.

    Raises:
        ConfigError: the mode is unknown, `event` is not a `CloudEvent`, or cloudevents is not
            installed.
        SerializationError: the format cannot encode the event.
    """
    if mode not in get_args(Mode):
        raise ConfigError(f"mode={mode!r}: use 'binary' or 'structured'")
    binding = extra("cloudevents.core.bindings.kafka", "cloudevents", "cloudevents", "send_event")
    if not hasattr(event, "get_attributes") or not hasattr(event, "get_data"):
        raise ConfigError(
            f"event=<{type(event).__name__}>: use a cloudevents.core.v1.event.CloudEvent"
        )
    if format is None:
        format = extra(
            "cloudevents.core.formats.json", "cloudevents", "cloudevents", ""
        ).JSONFormat()
    convert = binding.to_binary if mode == "binary" else binding.to_structured
    message: Any = None
    failure = ""
    try:
        message = convert(event, format)
    except Exception as error:
        failure = type(error).__name__
    if failure:
        # Raise this outside the `except` block, so that the error, whose text may contain the
        # event's data, is not chained.
        raise SerializationError(f"the event cannot be encoded ({failure})")
    value = message.value
    if mode == "binary" and event.get_data() is None:
        value = None
    return message.key, value, [*message.headers.items()]


async def send_event(
    producer: Producer[Any, Any],
    topic: str,
    event: Any,
    *,
    mode: Mode = "binary",
    key: Any = None,
    format: Any = None,
) -> RecordMetadata:
    """Send an event and wait for its acknowledgment, like `Producer.send`.

    Args:
        producer: a producer without a `value_serializer`, because the format encodes the event.
        mode: "binary" (attributes in headers) or "structured" (the whole event in the value).
        key: the key of the record; None for the event's extension attribute `partitionkey`, which
            is encoded as UTF-8 if the producer has no `key_serializer`.
        format: a format of cloudevents; default: its JSON format.

    Raises:
        ConfigError: an argument is not valid, the producer has a `value_serializer`, or cloudevents
            is not installed.
        SerializationError: the format cannot encode the event.
        KafkaError: see `Producer.send`.

    Cancellation: see `Producer.send`.
    """
    found, value, headers = event_record(event, mode=mode, format=format)
    serializers = producer._serializers
    if not serializers.value.passthrough:
        raise ConfigError(
            "send_event: the producer has a value_serializer, which would convert the encoded "
            "event again; use a producer without one"
        )
    if key is None:
        key = found
        if isinstance(key, str) and serializers.key.passthrough:
            key = key.encode()
    return await producer.send(topic, value, key=key, headers=headers)
