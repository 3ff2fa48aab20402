"""DeleteTopics (API key 20): delete topics by name or id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import (
    Struct,
    array,
    int16,
    int32,
    nullable_string,
    string_array,
    uuid,
)


@dataclass(frozen=True, slots=True)
class DeleteTopicState(Struct):
    """One topic, by name or, with a null name, by id."""

    name: str | None = nullable_string("6+", default=None)  # null = look at topic_id
    topic_id: bytes = uuid("6+")  # zero = unknown


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Message):
    """Topics to delete."""

    api_key = 20
    min_version = 1
    max_version = 6
    flexible_version = 4

    topics: Sequence[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: Sequence[str] = string_array("0-5", ignorable=True)
    timeout_ms: int = int32()  # ms


@dataclass(frozen=True, slots=True)
class DeletableTopicResult(Struct):
    """Result of one topic."""

    name: str | None = nullable_string(nullable="6+")  # null = look at topic_id
    topic_id: bytes = uuid("6+", ignorable=True)  # zero = unknown
    error_code: int = int16()  # 0 = none
    error_message: str | None = nullable_string("5+", default=None, ignorable=True)


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse(Message):
    """One result per topic."""

    api_key = 20
    min_version = 1
    max_version = 6
    flexible_version = 4

    throttle_time_ms: int = int32("1+", ignorable=True)  # ms the client is asked to wait
    responses: Sequence[DeletableTopicResult] = array(DeletableTopicResult)
