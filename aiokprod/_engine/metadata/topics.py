"""Which topics the producer uses, and what brokers last said about each.

Source: Java `ProducerMetadata.topics`, `newTopics`, `retainTopic`.
"""

from __future__ import annotations

import logging

from aiokprod.errors import error_code
from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)


class TrackedTopics:
    """Names in use, with expiry. Instants are seconds of `loop.time()`.

    Attributes:
        new: names that no answer was about yet; an ordered set.
        fast_retry: new names that no request has asked for yet; the first request for them does not
            wait for the backoff.
        misses: answers in a row that lacked something of a topic; absent = none.
        lower_epochs: answers in a row with a leader epoch below the known one, those apart that
            were asked for without a complaint; absent = none.
    """

    __slots__ = (
        "_answers",
        "_expires_at",
        "_max_idle",
        "fast_retry",
        "lower_epochs",
        "misses",
        "new",
    )

    def __init__(self, max_idle: float) -> None:
        self._max_idle = max_idle
        self._expires_at: dict[str, float] = {}
        self._answers: dict[str, tuple[int, int]] = {}
        self.new: dict[str, None] = {}
        self.fast_retry: set[str] = set()
        self.misses: dict[str, int] = {}
        self.lower_epochs: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        return len(self._expires_at)

    def names(self) -> tuple[str, ...]:
        """All topics in use, in the order of their first use."""
        return tuple(self._expires_at)

    def mark_used(self, topic: str, now: float) -> bool:
        """Keep the topic for max_idle from now; True if it is new. O(1)."""
        is_new = topic not in self._expires_at
        if is_new:
            self.new[topic] = None
            self.fast_retry.add(topic)
        self._expires_at[topic] = now + self._max_idle
        return is_new

    def retain(self, topic: str, now: float) -> bool:
        """Whether the topic is still in use. One idle for too long is forgotten here, unless no
        answer was about it yet."""
        expires_at = self._expires_at.get(topic)
        if expires_at is None:
            return False
        if topic in self.new or now < expires_at:
            return True
        del self._expires_at[topic]
        self._answers.pop(topic, None)
        return False

    def answer(self, topic: str) -> tuple[int, int]:
        """Generation and error code of the last answer about the topic; (0, 0) if none."""
        return self._answers.get(topic, (0, 0))

    def note_answer(self, topic: str, code: int, generation: int) -> None:
        """An answer was about the topic. Logs an error only when it differs from the last one."""
        self.new.pop(topic, None)
        self.fast_retry.discard(topic)
        if code and code != self.answer(topic)[1]:
            row = error_code(code)
            logger.warning("metadata of topic %s: %s, %s", topic, row.name, row.text)
        self._answers[topic] = (generation, code)
