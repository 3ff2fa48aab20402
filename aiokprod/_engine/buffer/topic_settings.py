"""The batch settings of each topic: those of its profile, or those of the producer if the profile
has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokprod._config.profiles import NO_PROFILE, EffectiveSettings, compiled, profiles_of
from aiokprod._wire.compression import NoCompression, codec_for

if TYPE_CHECKING:
    from aiokprod._wire.compression import Codec
    from aiokprod.config import ProducerConfig
    from aiokprod.topic_profiles import TopicProfile

_LEAST_BATCHES: Final = 16
"""Minimum number of batches of the largest size for which the buffer has room."""


class TopicSettings:
    """The settings of the topics of one profile, in seconds and bytes.

    Attributes:
        linger: maximum time that a batch waits for more records.
        own_linger: True if the profile sets the linger. Batches then wait for `linger` even if a
            request to their broker is sent earlier.
        batch_size: target size of a batch, including the header.
        growth_limit: maximum size to which a batch may grow, including the header
            (`elastic_batch_size`).
        sticky_limit: bytes after which another sticky partition is chosen (KIP-794).
        delivery_timeout: maximum time from the opening of a batch to its outcome.
        codec: None for no compression.
    """

    __slots__ = (
        "batch_size",
        "codec",
        "delivery_timeout",
        "growth_limit",
        "linger",
        "own_linger",
        "sticky_limit",
    )

    def __init__(self, config: ProducerConfig, profile: TopicProfile, codec: Codec | None) -> None:
        topic = EffectiveSettings.of(config, profile)
        self.linger = topic.linger_ms / 1000
        self.own_linger = topic.own_linger
        self.batch_size = max(1, min(topic.batch_size, config.max_request_size))
        self.growth_limit = min(
            topic.elastic_batch_size, config.max_request_size, buffered_limit(config)
        )
        # A transaction keeps its sticky partition for longer, because each further partition costs
        # an AddPartitionsToTxn request and a marker.
        transactional = config.transactional_id is not None
        self.sticky_limit = max(self.batch_size, self.growth_limit * transactional)
        self.delivery_timeout = topic.delivery_timeout_ms / 1000
        self.codec = codec


class TopicSettingsTable:
    """Finds the settings of a topic. The result is cached until the topic is forgotten, because
    each partition of the topic needs it.

    Args:
        codec: the codec of the producer, which also applies to topics whose profile has none.
    """

    def __init__(self, config: ProducerConfig, codec: Codec | None) -> None:
        self._default = TopicSettings(config, NO_PROFILE, codec)
        self._profiles = []
        for pattern, profile in profiles_of(config):
            own = codec
            if profile.compression_type is not None or profile.compression_level is not None:
                own = configured_codec(config, profile)
            settings = TopicSettings(config, profile, own)
            self._profiles.append((compiled(pattern).fullmatch, settings))
        self._by_topic: dict[str, TopicSettings] = {}

    @property
    def compresses(self) -> bool:
        """True if batches of some topics are compressed."""
        every = [self._default, *(settings for _, settings in self._profiles)]
        return any(settings.codec is not None for settings in every)

    def of(self, topic: str) -> TopicSettings:
        """Return the settings of a topic: those of the first pattern that matches it."""
        if not self._profiles:
            return self._default
        settings = self._by_topic.get(topic)
        if settings is None:
            found = (settings for matches, settings in self._profiles if matches(topic))
            settings = self._by_topic[topic] = next(found, self._default)
        return settings

    def forget(self, topic: str) -> None:
        """Drop the settings of a topic that is no longer in use."""
        self._by_topic.pop(topic, None)


def configured_codec(config: ProducerConfig, profile: TopicProfile = NO_PROFILE) -> Codec | None:
    """Return the codec that a configuration selects for the topics of a profile, or None for no
    compression.

    Raises:
        ConfigError: the level is out of range, or the codec's package is missing.
    """
    topic = EffectiveSettings.of(config, profile)
    if topic.compression_type == NoCompression.name:
        return None
    return codec_for(topic.compression_type, topic.compression_level)


def buffered_limit(config: ProducerConfig) -> int:
    """Return the largest size, in bytes, to which a batch may grow. The limit applies both to its
    memory in the buffer and to its size in a request."""
    return config.buffer_memory // _LEAST_BATCHES
