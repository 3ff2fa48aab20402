"""The structured fields of log records. `docs/monitoring.md` lists them.

The fields are attributes of the `logging.LogRecord` with the prefix `kafka_`, for filters and for
formatters that write JSON. `kafka_event` is the name of the event, which stays the same if the text
changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiokprod.records import TopicPartition


def log_fields(
    event: str,
    *,
    topic_partition: TopicPartition | None = None,
    error: BaseException | None = None,
    **fields: object,
) -> dict[str, object]:
    """Return the argument `extra` of a log call.

    Args:
        topic_partition: becomes `kafka_topic` and `kafka_partition`.
        error: becomes `kafka_error`, the name of its class, and `kafka_code`, the name of its error
            code if it has one. The message contains the text of the error.
        fields: plain values, but no keys or values of records and no credentials.
    """
    found: dict[str, object] = {"kafka_event": event}
    if topic_partition is not None:
        found["kafka_topic"], found["kafka_partition"] = topic_partition
    if error is not None:
        found["kafka_error"] = type(error).__name__
        code = getattr(error, "code", None)
        if code is not None:
            found["kafka_code"] = code.name
    for name, value in fields.items():
        found["kafka_" + name] = value
    return found
