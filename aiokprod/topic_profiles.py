"""`TopicProfile`: settings for some topics of a producer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from aiokprod._config.fields import CODEC_CHOICE, LEVELS, Check, IntRange, invalid_setting
from aiokprod.errors import ConfigError


def _setting(check: Check) -> Any:
    return field(default=None, metadata={"check": check})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TopicProfile:
    """Settings for the topics of one pattern in `ProducerConfig.topic_profiles`.

    ::

        Producer(
            bootstrap_servers="localhost:9092",
            topic_profiles={
                "logs.audit": TopicProfile(),  # the producer's settings
                "logs.*": TopicProfile(linger_ms=50, compression_type="zstd", compression_level=6),
            },
        )

    None stands for the setting of the producer. A profile without settings excludes its topics from
    later patterns.

    Attributes:
        linger_ms: maximum time in milliseconds that a batch of the topic waits for more records.
            Batches wait that long even if the broker is idle (`adaptive_linger` does not apply) or
            gets batches of other topics during that time, unless they are full, `buffer_memory` is
            exhausted, or a flush, a transaction or the producer is ending.
        batch_size: target size of a batch in bytes, 0 or more, at most `max_request_size` and
            `buffer_memory`; 0 sends records one by one.
        compression_type: "none", "gzip", "snappy", "lz4" or "zstd".
        compression_level: level of the codec, in the range of ``compression_gzip_level``,
            ``compression_lz4_level`` or ``compression_zstd_level``; None stands for the producer's
            level of that codec.
        delivery_timeout_ms: limit in milliseconds from the creation of a record's batch to the
            record's outcome; at least `linger_ms` + the producer's `request_timeout_ms`.

    Raises:
        ConfigError: a value is out of range. The message names the field, its value and the fix.
    """

    linger_ms: int | None = _setting(IntRange(0))
    batch_size: int | None = _setting(IntRange(0))
    compression_type: str | None = _setting(CODEC_CHOICE)
    compression_level: int | None = _setting(IntRange(-(2**31)))
    delivery_timeout_ms: int | None = _setting(IntRange(0))

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                each.metadata["check"].validate(each.name, value)
        if self.compression_type is not None:
            check_level(self.compression_type, self.compression_level)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        """Create a profile from Java's names ("linger.ms") or Python names; values may be strings.

        Raises:
            ConfigError: `mapping` has another type, a key is unknown or given in both spellings, or
                a value is wrong.
        """
        if not isinstance(mapping, Mapping):
            raise ConfigError(f"a topic profile is made from a mapping, not from {mapping!r}")
        known = {each.name: each for each in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in mapping.items():
            if not isinstance(key, str):
                raise ConfigError(f"key {key!r} of a topic profile must be a str")
            name = key.strip().replace(".", "_")
            if name not in known:
                names = ", ".join(known)
                raise ConfigError(f"{key!r} is not a setting of a topic profile; these are {names}")
            if name in values:
                raise ConfigError(f"{key!r} is given twice, in Java's and in this spelling")
            if isinstance(value, str):
                value = known[name].metadata["check"].parse(name, value)
            values[name] = value
        return cls(**values)

    def __repr__(self) -> str:
        shown = [
            f"{each.name}={value!r}"
            for each in fields(self)
            if (value := getattr(self, each.name)) is not None
        ]
        return f"TopicProfile({', '.join(shown)})"


def check_level(compression_type: str, level: int | None) -> None:
    """Check a compression level; None is always valid.

    Raises:
        ConfigError: the codec does not have this level, or has no levels.
    """
    if level is None:
        return
    levels = LEVELS.get(compression_type)
    if levels is None:
        fix = f"compression_type={compression_type!r} has no levels; leave it out"
        raise invalid_setting("compression_level", level, fix)
    levels.validate(f"compression_type={compression_type!r}, compression_level", level)
