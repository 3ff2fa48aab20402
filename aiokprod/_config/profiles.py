"""The setting `topic_profiles`: its patterns, and the settings that apply to a topic.

A pattern is a topic name in which ``*`` stands for any characters or none, and ``?`` for one.
The first pattern that matches a topic applies.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from aiokprod._config.fields import DefaultInt, invalid_setting
from aiokprod._log_fields import log_fields
from aiokprod.errors import ConfigError
from aiokprod.topic_profiles import TopicProfile, check_level

if TYPE_CHECKING:
    from aiokprod.config import ProducerConfig

logger = logging.getLogger("aiokprod")

Profiles = tuple[tuple[str, TopicProfile], ...]
_NAME: Final = "topic_profiles"
_FORM: Final = "use a mapping from topic patterns to TopicProfile objects"
_PATTERN: Final = re.compile(r"[a-zA-Z0-9._*?-]{1,249}")
_RUN: Final = re.compile(r"[*?]*\*[*?]*")
_TRANSACTIONAL_GROWTH: Final = 8
"""Default of elastic_batch_size with transactions, in multiples of batch_size."""


@dataclass(frozen=True, slots=True)
class ProfilesCheck:
    """A mapping from patterns to profiles, or a sequence of pairs. The value is converted to a
    tuple of pairs, because the order matters."""

    def validate(self, name: str, value: object) -> Profiles:
        items = tuple(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
            raise invalid_setting(name, value, _FORM)
        found: list[tuple[str, TopicProfile]] = []
        for item in items:
            if not isinstance(item, tuple) or len(item) != 2:
                raise invalid_setting(name, item, _FORM)
            pattern, profile = item
            _check_pattern(name, pattern)
            if not isinstance(profile, TopicProfile):
                raise invalid_setting(
                    f"{name}[{pattern!r}]", profile, "use TopicProfile(...); for a mapping of "
                    "settings TopicProfile.from_mapping(...)",
                )  # fmt: skip
            for earlier, _ in found:
                if covers(earlier, pattern):
                    raise ConfigError(
                        f"{name}[{pattern!r}] never applies, because {earlier!r} comes before it "
                        "and matches the same topics: put the more specific pattern first"
                    )
            found.append((pattern, profile))
        return tuple(found)

    def parse(self, name: str, text: str) -> object:
        raise invalid_setting(name, text, _FORM)


def _check_pattern(name: str, pattern: Any) -> None:
    if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
        raise invalid_setting(
            name, pattern, "a pattern has 1 to 249 of the characters a-z A-Z 0-9 . _ - of topic "
            "names, * for any characters and ? for one",
        )  # fmt: skip


def profiles_of(config: ProducerConfig) -> Profiles:
    """Return the profiles of a configuration: the tuple that `ProfilesCheck` returned."""
    return cast(Profiles, config.topic_profiles)


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a regular expression whose `fullmatch` accepts the topics of a pattern."""
    return re.compile(_expression(pattern, one=".", one_of_run="."))


def covers(earlier: str, later: str) -> bool:
    """Return True only if every topic that matches `later` also matches `earlier`."""
    # Match the text of the pattern `later` as if it were a topic. A "*" in `later` stands for text
    # of any length, so only a "*" of `earlier` may match it. A "?" next to a "*" of `earlier` may
    # therefore skip any number of "*" before the one character that it matches.
    expression = _expression(earlier, one="[^*]", one_of_run=r"\**+[^*]")
    return re.fullmatch(expression, later) is not None


def _expression(pattern: str, *, one: str, one_of_run: str) -> str:
    """Return a regular expression for a pattern. Matching takes no exponential time, because the
    text between two ``*`` is only matched at its first occurrence.

    Args:
        one: expression for a ``?``.
        one_of_run: expression for a ``?`` next to a ``*``.
    """
    *parts, last = _RUN.sub(lambda run: "?" * run[0].count("?") + "*", pattern).split("*")
    last = re.escape(last).replace(r"\?", one)
    if not parts:
        return last
    texts = []
    for part in parts:
        text = part.rstrip("?")
        run = one_of_run * (len(part) - len(text))
        texts.append(re.escape(text).replace(r"\?", one) + run)
    middle = "".join(f"(?>.*?{text})" for text in texts[1:])
    return f"{texts[0]}{middle}.*{last}"


def default_elastic_batch_size(
    batch_size: int, *, transactional: bool, max_request_size: int
) -> int:
    """Return the default of `elastic_batch_size`."""
    return min(_TRANSACTIONAL_GROWTH * batch_size, max_request_size) if transactional else 0


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """The settings that apply to a topic: those of its profile, or else those of the producer.

    Attributes: see `ProducerConfig`.
        own_linger: the profile has a `linger_ms`, so `adaptive_linger` does not apply.
    """

    linger_ms: int
    own_linger: bool
    batch_size: int
    elastic_batch_size: int
    delivery_timeout_ms: int
    compression_type: str
    compression_level: int | None

    @classmethod
    def of(cls, config: ProducerConfig, profile: TopicProfile) -> EffectiveSettings:
        """Combine a profile with the settings of its producer."""
        linger_ms = config.linger_ms if profile.linger_ms is None else profile.linger_ms
        batch_size, elastic = config.batch_size, config.elastic_batch_size
        if profile.batch_size is not None:
            batch_size = profile.batch_size
            if isinstance(elastic, DefaultInt):
                elastic = default_elastic_batch_size(
                    batch_size,
                    transactional=config.transactional_id is not None,
                    max_request_size=config.max_request_size,
                )
        timeout_ms = profile.delivery_timeout_ms
        if timeout_ms is None:
            timeout_ms = config.delivery_timeout_ms
            if isinstance(timeout_ms, DefaultInt):
                timeout_ms = max(timeout_ms, linger_ms + config.request_timeout_ms)
        compression_type = profile.compression_type or config.compression_type
        level = profile.compression_level
        if level is None:
            level = getattr(config, f"compression_{compression_type}_level", None)
        return cls(
            linger_ms=linger_ms,
            own_linger=profile.linger_ms is not None,
            batch_size=batch_size,
            elastic_batch_size=elastic,
            delivery_timeout_ms=timeout_ms,
            compression_type=compression_type,
            compression_level=level,
        )


NO_PROFILE: Final = TopicProfile()


def check_profiles(config: ProducerConfig) -> None:
    """Check each profile together with the settings of the producer.

    Raises:
        ConfigError: a setting of a profile conflicts with a setting of the producer.
    """
    for pattern, profile in profiles_of(config):
        where = f"{_NAME}[{pattern!r}]"
        topic = EffectiveSettings.of(config, profile)
        try:
            check_level(topic.compression_type, profile.compression_level)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.message}") from None
        for limit in ("max_request_size", "buffer_memory"):
            most = getattr(config, limit)
            if profile.batch_size is not None and profile.batch_size > most:
                raise invalid_setting(
                    f"{where}: batch_size", profile.batch_size,
                    f"use at most {limit} = {most}, or raise {limit}",
                )  # fmt: skip
        _check_delivery_timeout(config, profile, topic, where)


def _check_delivery_timeout(
    config: ProducerConfig, profile: TopicProfile, topic: EffectiveSettings, where: str
) -> None:
    least = topic.linger_ms + config.request_timeout_ms
    if topic.delivery_timeout_ms < least:
        fix = f"use at least linger_ms + request_timeout_ms = {least}"
        if profile.delivery_timeout_ms is None:
            fix = f"the producer's value is too short for linger_ms={topic.linger_ms}: {fix}"
        raise invalid_setting(f"{where}: delivery_timeout_ms", topic.delivery_timeout_ms, fix)
    if profile.delivery_timeout_ms is None and topic.delivery_timeout_ms > (
        config.delivery_timeout_ms
    ):
        logger.warning(
            "%s: delivery_timeout_ms is raised to linger_ms + request_timeout_ms = %d",
            where, least, extra=log_fields("setting_adjusted", setting="delivery_timeout_ms"),
        )  # fmt: skip
