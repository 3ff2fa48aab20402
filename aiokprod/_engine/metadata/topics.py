"""The topics that the producer uses, with the last response for each of them.

Source: Java `ProducerMetadata.topics`, `newTopics`, `retainTopic`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiokprod._log_fields import log_fields
from aiokprod.errors import Code, error_code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

_NAMED: Final = 10
"""Maximum number of topics that a log message names."""

CREATION_S: Final = 3.0
"""Seconds within which a topic that brokers create automatically should be in the metadata."""

_BEING_CREATED: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE})
"""Error codes of a topic that is being created. For a short time, responses have the same code as
for a topic that does not exist."""


@dataclass(slots=True)
class TopicWait:
    """The number of calls that wait for a topic, and the time at which the first of them began to
    wait."""

    since: float
    calls: int = 0


class TrackedTopics:
    """The topics in use and when they expire. Times are seconds of `loop.time()`.

    Attributes:
        new: topics that no response has contained yet; an ordered set.
        fast_retry: new topics that no request has contained yet; the first request for them does
            not wait for the backoff.
        misses, lower_epochs: see `Merged` (`merge.py`); from the last response.
        contradicted: see `Merged`; from the last full response.
        refused_ids: topics whose known id a broker has rejected, until a response has the topic
            without an error.
    """

    __slots__ = (
        "_answers",
        "_auto_create",
        "_expires_at",
        "_first_used",
        "_max_idle",
        "_on_new",
        "contradicted",
        "fast_retry",
        "lower_epochs",
        "misses",
        "new",
        "refused_ids",
    )

    def __init__(
        self, max_idle: float, on_new: Callable[[], None], *, auto_create: bool = True
    ) -> None:
        self._auto_create = auto_create
        self._first_used: dict[str, float] = {}  # topics that may be about to be created
        self._max_idle = max_idle
        self._on_new = on_new
        self._expires_at: dict[str, float] = {}
        self._answers: dict[str, tuple[int, int]] = {}
        self.new: dict[str, None] = {}
        self.fast_retry: set[str] = set()
        self.misses: dict[str, int] = {}
        self.lower_epochs: dict[TopicPartition, int] = {}
        self.contradicted: dict[TopicPartition, int] = {}
        self.refused_ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._expires_at)

    def names(self) -> tuple[str, ...]:
        """Return all topics in use, in the order of their first use."""
        return tuple(self._expires_at)

    def mark_used(self, topic: str, now: float) -> None:
        """Keep the topic in use for `max_idle` seconds from `now`, and call `on_new` if the topic
        is new. O(1)."""
        is_new = topic not in self._expires_at
        if is_new:
            self.new[topic] = None
            self.fast_retry.add(topic)
            if self._auto_create:
                self._first_used[topic] = now
        self._expires_at[topic] = now + self._max_idle
        if is_new:
            self._on_new()

    def keep(self, topic: str, now: float) -> None:
        """Like `mark_used`, but without effect for a topic that is not in use yet."""
        if topic in self._expires_at:
            self._expires_at[topic] = now + self._max_idle

    def retain(self, topic: str, now: float) -> bool:
        """Return True if the topic is still in use. This method forgets a topic that has been idle
        for `max_idle` seconds, unless no response has contained it yet."""
        expires_at = self._expires_at.get(topic)
        if expires_at is None:
            return False
        if topic in self.new or now < expires_at:
            return True
        del self._expires_at[topic]
        self._answers.pop(topic, None)
        self._first_used.pop(topic, None)
        self.refused_ids.discard(topic)
        return False

    def answer(self, topic: str) -> tuple[int, int]:
        """Return the generation and error code of the last response that contained the topic, or
        (0, 0) if there is none."""
        return self._answers.get(topic, (0, 0))

    def note_answers(self, answered: Mapping[str, int], generation: int, now: float) -> None:
        """Record the error codes of the topics in a response. An error is logged only if it differs
        from the topic's previous error, and a missing new topic only if it is still missing after
        `CREATION_S`. Topics with the same error are logged in one message."""
        failed: dict[int, list[str]] = {}
        missing: list[str] = []
        for topic, code in answered.items():
            is_new = topic in self._first_used
            if self._note_answer(topic, code, generation, now):
                not_created = is_new and code == Code.UNKNOWN_TOPIC_OR_PARTITION
                (missing if not_created else failed.setdefault(code, [])).append(topic)
        if missing:
            logger.warning(
                "%s: not in the metadata, and no broker has created it within %.3g s: create it, "
                "or set auto.create.topics.enable=true on the brokers",
                _named(missing), CREATION_S,
                extra=_fields(missing, Code.UNKNOWN_TOPIC_OR_PARTITION),
            )  # fmt: skip
        for code, topics in failed.items():
            row = error_code(code)
            logger.warning(
                "metadata of %s: %s, %s", _named(topics), row.name, row.text,
                extra=_fields(topics, code),
            )  # fmt: skip

    def _note_answer(self, topic: str, code: int, generation: int, now: float) -> bool:
        """Record the error code of one topic. Return True if it must be logged."""
        self.new.pop(topic, None)
        self.fast_retry.discard(topic)
        if not code:
            self.refused_ids.discard(topic)
        before = self.answer(topic)[1]
        self._answers[topic] = (generation, code)
        first_used = self._first_used.get(topic)
        if first_used is not None and code in _BEING_CREATED and now < first_used + CREATION_S:
            return False
        self._first_used.pop(topic, None)
        return code != 0 and (code != before or first_used is not None)


def _named(topics: list[str]) -> str:
    """Return "topic a" or "topics a, b and 3 more"."""
    names = ", ".join(topics[:_NAMED])
    if len(topics) > _NAMED:
        names += f" and {len(topics) - _NAMED} more"
    return f"topic {names}" if len(topics) == 1 else f"topics {names}"


def _fields(topics: list[str], code: int) -> dict[str, object]:
    name = error_code(code).name
    return log_fields("topic_error", topic=", ".join(topics[:_NAMED]), code=name)
