"""The topics that the producer uses, with the last response about each.

Source: Java `ProducerMetadata.topics`, `newTopics`, `retainTopic`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiokprod.errors import error_code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

_NAMED: Final = 10
"""Maximum number of topics that a log line names."""


class TrackedTopics:
    """The topics in use and when they expire. Times are seconds of `loop.time()`.

    Attributes:
        new: topics that were in no response yet; an ordered set.
        fast_retry: new topics that were in no request yet; the first request for them does not wait
            for the backoff.
        misses, lower_epochs: as in `Merged` (`merge.py`), from the last response.
        refused_ids: topics whose known id a broker did not know, until a response has the topic.
    """

    __slots__ = (
        "_answers",
        "_expires_at",
        "_max_idle",
        "_on_new",
        "fast_retry",
        "lower_epochs",
        "misses",
        "new",
        "refused_ids",
    )

    def __init__(self, max_idle: float, on_new: Callable[[], None]) -> None:
        self._max_idle = max_idle
        self._on_new = on_new
        self._expires_at: dict[str, float] = {}
        self._answers: dict[str, tuple[int, int]] = {}
        self.new: dict[str, None] = {}
        self.fast_retry: set[str] = set()
        self.misses: dict[str, int] = {}
        self.lower_epochs: dict[TopicPartition, int] = {}
        self.refused_ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._expires_at)

    def names(self) -> tuple[str, ...]:
        """All topics in use, in the order of their first use."""
        return tuple(self._expires_at)

    def mark_used(self, topic: str, now: float) -> None:
        """Keep the topic for max_idle from now; call `on_new` if it is new. O(1)."""
        is_new = topic not in self._expires_at
        if is_new:
            self.new[topic] = None
            self.fast_retry.add(topic)
        self._expires_at[topic] = now + self._max_idle
        if is_new:
            self._on_new()

    def retain(self, topic: str, now: float) -> bool:
        """True if the topic is still in use. One that was idle for too long is forgotten here,
        unless it was in no response yet."""
        expires_at = self._expires_at.get(topic)
        if expires_at is None:
            return False
        if topic in self.new or now < expires_at:
            return True
        del self._expires_at[topic]
        self._answers.pop(topic, None)
        self.refused_ids.discard(topic)
        return False

    def answer(self, topic: str) -> tuple[int, int]:
        """Generation and error code of the last response that had the topic; (0, 0) if none."""
        return self._answers.get(topic, (0, 0))

    def note_answers(self, answered: Mapping[str, int], generation: int) -> None:
        """A response had these topics with these error codes. Logs an error only if it differs from
        the last one of the topic, and all topics with the same error in one line."""
        failed: dict[int, list[str]] = {}
        for topic, code in answered.items():
            if code and code != self.answer(topic)[1]:
                failed.setdefault(code, []).append(topic)
            self._note_answer(topic, code, generation)
        for code, topics in failed.items():
            row = error_code(code)
            names = ", ".join(topics[:_NAMED])
            if len(topics) > _NAMED:
                names += f" and {len(topics) - _NAMED} more"
            what = "topic" if len(topics) == 1 else "topics"
            logger.warning("metadata of %s %s: %s, %s", what, names, row.name, row.text)

    def _note_answer(self, topic: str, code: int, generation: int) -> None:
        self.new.pop(topic, None)
        self.fast_retry.discard(topic)
        if not code:
            self.refused_ids.discard(topic)
        self._answers[topic] = (generation, code)
