"""`TopicProfile` and the setting `topic_profiles`: values, patterns, and the producer's
settings."""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import logging
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod import ConfigError, Producer, ProducerConfig, TopicProfile
from aiokprod._config.profiles import EffectiveSettings, compiled, covers
from aiokprod._engine.buffer.topic_settings import TopicSettingsTable, configured_codec
from aiokprod._wire.compression import CODEC_NAMES


def config(profiles: Any, **settings: Any) -> ProducerConfig:
    return ProducerConfig(bootstrap_servers="broker:9092", topic_profiles=profiles, **settings)


def table(profiles: Any, **settings: Any) -> TopicSettingsTable:
    made = config(profiles, **settings)
    return TopicSettingsTable(made, configured_codec(made))


# -- a profile ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"linger_ms": -1}, "linger_ms=-1: use an int of 0 to 2147483647"),
        ({"linger_ms": "50"}, "linger_ms='50': use an int"),
        ({"linger_ms": True}, "linger_ms=True: use an int"),
        ({"linger_ms": 1.5}, "linger_ms=1.5: use an int"),
        ({"batch_size": 2**31}, "batch_size=2147483648: use an int"),
        ({"delivery_timeout_ms": -5}, "delivery_timeout_ms=-5: use an int"),
        ({"compression_type": "brotli"}, "compression_type='brotli': use one of 'none', 'gzip'"),
        ({"compression_type": "zstd", "compression_level": 23}, "use an int of -131072 to 22"),
        ({"compression_type": "gzip", "compression_level": 0}, "use an int of 1 to 9 or -1"),
        ({"compression_type": "snappy", "compression_level": 1}, "has no levels; leave it out"),
        ({"compression_type": "none", "compression_level": 1}, "has no levels; leave it out"),
        ({"compression_level": "6"}, "compression_level='6': use an int"),
    ],
)
def test_invalid_value_is_refused_with_its_field_and_the_fix(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as found:
        TopicProfile(**settings)
    assert text in found.value.message


def test_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="acks"):
        TopicProfile(acks=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"'acks' is not a setting of a topic profile.*linger_ms"):
        TopicProfile.from_mapping({"acks": 1})


def test_profile_from_a_mapping() -> None:
    made = TopicProfile.from_mapping(
        {"linger.ms": " 50", "compression_type": "zstd", "compression.level": "-3"}
    )
    assert made == TopicProfile(linger_ms=50, compression_type="zstd", compression_level=-3)
    with pytest.raises(ConfigError, match="given twice"):
        TopicProfile.from_mapping({"linger.ms": 1, "linger_ms": 1})
    with pytest.raises(ConfigError, match=r"linger_ms='soon': use a decimal integer"):
        TopicProfile.from_mapping({"linger.ms": "soon"})
    with pytest.raises(ConfigError, match=r"key 3 .* must be a str"):
        TopicProfile.from_mapping({3: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("value", [5, None, [("linger.ms", 1)], "linger.ms=1", TopicProfile()])
def test_profile_is_made_from_a_mapping_only(value: Any) -> None:
    with pytest.raises(ConfigError, match="made from a mapping, not from"):
        TopicProfile.from_mapping(value)


def test_profile_is_an_immutable_value() -> None:
    made = TopicProfile(linger_ms=50, compression_type="lz4")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.linger_ms = 1  # type: ignore[misc]
    assert repr(made) == "TopicProfile(linger_ms=50, compression_type='lz4')"
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    assert len({made, TopicProfile(linger_ms=50, compression_type="lz4"), TopicProfile()}) == 2


# -- patterns -------------------------------------------------------------------------------------


def test_first_pattern_that_matches_decides() -> None:
    found = table(
        {
            "logs.audit": TopicProfile(),
            "logs.?": TopicProfile(linger_ms=1),
            "logs.*": TopicProfile(linger_ms=2),
            "*-dlq": TopicProfile(linger_ms=3),
        },
        linger_ms=7,
    )
    lingers = {
        "logs.audit": 7, "logs.a": 1, "logs.": 2, "logs.ab": 2, "logs.a.b": 2, "logs": 7,
        "logsxa": 7, "my.logs.a": 7, "a-dlq": 3, "logs.a-dlq": 2, "LOGS.a": 7, "-dlq": 3,
    }  # fmt: skip
    assert {topic: round(found.of(topic).linger * 1000) for topic in lingers} == lingers


@pytest.mark.parametrize(
    "pattern", ["", "a b", r"logs\..*", "logs.[ab]", "^logs", "a/b", "ü", "x" * 250, 3, None, b"a"]
)
def test_invalid_pattern_is_refused(pattern: Any) -> None:
    with pytest.raises(ConfigError, match="a pattern has 1 to 249 of the characters"):
        config({pattern: TopicProfile()})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("*", "logs.*"),
        ("*", "a"),
        ("logs.*", "logs.a?"),
        ("a?", "ab"),
        ("a*c", "ab*c"),
        ("*a*", "a"),
        ("*?", "?*"),
        ("?*", "*?"),
        ("?*", "*a"),
        ("a?*?", "ab*c"),
        ("a**", "a*"),
    ],
)
def test_pattern_that_can_never_apply_is_refused(first: str, second: str) -> None:
    with pytest.raises(ConfigError, match=r"never applies, because .* put the more specific"):
        config({first: TopicProfile(), second: TopicProfile()})
    if not covers(second, first):
        config({second: TopicProfile(), first: TopicProfile()})


def test_repeated_pattern_is_refused() -> None:
    with pytest.raises(ConfigError, match="never applies"):
        config([("a", TopicProfile()), ("a", TopicProfile(linger_ms=1))])


patterns = st.text("ab.*?", min_size=1, max_size=6)
topics = st.text("abc.", min_size=1, max_size=7)


@settings(deadline=None)
@given(patterns, topics)
def test_pattern_matches_like_fnmatch(pattern: str, topic: str) -> None:
    matched = compiled(pattern).fullmatch(topic) is not None
    assert matched == fnmatch.fnmatchcase(topic, pattern)


@settings(deadline=None)
@given(patterns, patterns, st.data())
def test_covering_pattern_matches_each_topic_of_the_other(
    earlier: str, later: str, data: st.DataObject
) -> None:
    if not covers(earlier, later):
        return
    parts = {"*": st.text("abc.", max_size=3), "?": st.sampled_from("abc.")}
    topic = "".join(data.draw(parts.get(each, st.just(each))) for each in later)
    assert fnmatch.fnmatchcase(topic, later)
    assert compiled(earlier).fullmatch(topic)


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("*-*-*-*-dlq", "-" * 249),
        ("*-" * 60 + "x", "-" * 249),
        ("*?a" * 60 + "b", "a" * 249),
        ("*a?" * 60 + "b", "a" * 249),
        ("*a" * 60 + "b", "*a" * 100),
    ],
)
def test_pattern_with_many_stars_takes_no_exponential_time(pattern: str, topic: str) -> None:
    assert compiled(pattern).fullmatch(topic) is None
    assert not covers(pattern, topic)


# -- the setting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("logs.*", "use a mapping"),
        (5, "use a mapping"),
        (TopicProfile(), "use a mapping"),
        ([TopicProfile()], "use a mapping"),
        ([("a",)], "use a mapping"),
        ({("a", TopicProfile())}, "use a mapping"),  # a set has no order
        (iter([("a", TopicProfile())]), "use a mapping"),
        ({"a": {"linger_ms": 1}}, r"topic_profiles\['a'\]={'linger_ms': 1}: use TopicProfile"),
        ({"a": TopicProfile}, "use TopicProfile"),
        ({"a": None}, "use TopicProfile"),
    ],
)
def test_value_of_another_form_is_refused(value: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config(value)


def test_setting_is_kept_as_pairs_and_can_be_replaced_and_pickled() -> None:
    profile = TopicProfile(linger_ms=50)
    made = config({"logs.*": profile})
    assert made.topic_profiles == (("logs.*", profile),)
    assert dataclasses.replace(made, linger_ms=1).topic_profiles == made.topic_profiles
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(config([("logs.*", profile)]))
    assert config({}).topic_profiles == ()
    loaded = {"bootstrap.servers": "b:1", "topic.profiles": {"logs.*": profile}}
    assert ProducerConfig.from_mapping(loaded).topic_profiles == made.topic_profiles
    with pytest.raises(ConfigError, match=r"topic_profiles='logs': use a mapping"):
        ProducerConfig.from_mapping({"bootstrap.servers": "b:1", "topic.profiles": "logs"})


def test_explain_has_the_profiles() -> None:
    producer = Producer(bootstrap_servers="b:1", topic_profiles={"a.*": TopicProfile(linger_ms=50)})
    assert "topic_profiles = (('a.*', TopicProfile(linger_ms=50)),)" in producer.explain()


# -- together with the producer's settings --------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "settings", "text"),
    [
        (
            {"linger_ms": 6_000, "delivery_timeout_ms": 35_999},
            {},
            "delivery_timeout_ms=35999: use at least linger_ms + request_timeout_ms = 36000",
        ),
        (
            {"delivery_timeout_ms": 30_004},
            {},
            "delivery_timeout_ms=30004: use at least linger_ms + request_timeout_ms = 30005",
        ),
        (
            {"linger_ms": 20_000},
            {"delivery_timeout_ms": 40_000},
            "delivery_timeout_ms=40000: the producer's value is too short for linger_ms=20000: "
            "use at least linger_ms + request_timeout_ms = 50000",
        ),
        ({"batch_size": 1_048_577}, {}, "batch_size=1048577: use at most max_request_size = 1048"),
        ({"batch_size": 9_000}, {"buffer_memory": 8_000}, "use at most buffer_memory = 8000"),
        ({"compression_level": 3}, {}, "compression_type='none' has no levels"),
        ({"compression_level": 18}, {"compression_type": "lz4"}, "use an int of 1 to 17"),
    ],
)
def test_conflict_with_a_setting_of_the_producer_is_refused(
    profile: dict[str, Any], settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as found:
        config({"a": TopicProfile(), "logs.*": TopicProfile(**profile)}, **settings)
    assert found.value.message.startswith("topic_profiles['logs.*']: ")
    assert text in found.value.message


def test_default_delivery_timeout_is_raised_for_a_long_linger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "aiokprod")
    found = table({"slow": TopicProfile(linger_ms=100_000)})
    assert found.of("slow").delivery_timeout == 130.0
    assert found.of("other").delivery_timeout == 120.0
    (warning,) = caplog.messages
    assert warning == (
        "topic_profiles['slow']: delivery_timeout_ms is raised to linger_ms + request_timeout_ms "
        "= 130000"
    )


def test_each_setting_of_a_profile_replaces_that_of_the_producer() -> None:
    found = table(
        {
            "a": TopicProfile(linger_ms=50, batch_size=1_000),
            "b": TopicProfile(compression_type="zstd", compression_level=6),
            "c": TopicProfile(compression_type="gzip"),
            "d": TopicProfile(compression_level=2),
            "e": TopicProfile(compression_type="none", delivery_timeout_ms=40_000),
            "f": TopicProfile(batch_size=0),
        },
        compression_type="lz4",
        compression_gzip_level=4,
        linger_ms=7,
    )
    assert [found.of(topic).linger for topic in "abx"] == [0.05, 0.007, 0.007]
    assert [found.of(topic).own_linger for topic in "abx"] == [True, False, False]
    assert [found.of(topic).batch_size for topic in "abf"] == [1_000, 131_072, 1]
    assert [found.of(topic).sticky_limit for topic in "abf"] == [1_000, 131_072, 1]
    assert [found.of(topic).delivery_timeout for topic in "ae"] == [120.0, 40.0]
    codecs = [found.of(topic).codec for topic in "abcdex"]
    shown = [None if codec is None else (codec.name, codec.level) for codec in codecs]
    assert shown == [("lz4", 9), ("zstd", 6), ("gzip", 4), ("lz4", 2), None, ("lz4", 9)]
    assert codecs[0] is codecs[-1]


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_worker_threads_exist_if_any_topic_is_compressed(name: str) -> None:
    assert table({"a": TopicProfile(compression_type=name)}).compresses is (name != "none")
    assert not table({"a": TopicProfile(linger_ms=1)}).compresses


def test_default_of_elastic_batch_size_follows_the_batch_size_of_the_profile() -> None:
    profiles = {"a": TopicProfile(batch_size=2_000), "b": TopicProfile(batch_size=1_000_000)}
    found = table(profiles, transactional_id="t", batch_size=1_000)
    assert [found.of(topic).growth_limit for topic in "abx"] == [16_000, 1_048_576, 8_000]
    assert [found.of(topic).sticky_limit for topic in "abx"] == [16_000, 1_048_576, 8_000]
    explicit = table(profiles, transactional_id="t", batch_size=1_000, elastic_batch_size=5_000)
    assert [explicit.of(topic).growth_limit for topic in "abx"] == [5_000] * 3
    assert [table(profiles).of(topic).growth_limit for topic in "abx"] == [0] * 3


def test_settings_of_a_topic_are_kept_until_it_is_forgotten() -> None:
    found = table({"a*": TopicProfile(linger_ms=1)})
    assert found.of("ab") is found.of("ab") is found.of("ac")
    assert found.of("b") is found.of("c")
    assert len(found._by_topic) == 4
    for topic in ("ab", "ac", "b", "c", "never"):
        found.forget(topic)
    assert not found._by_topic
    plain = table({})
    plain.of("a")
    assert not plain._by_topic


def test_package_of_a_codec_is_imported_by_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []

    def note(config: ProducerConfig, profile: TopicProfile) -> None:
        wanted.append(EffectiveSettings.of(config, profile).compression_type)

    monkeypatch.setattr("aiokprod.producer.configured_codec", note)
    Producer(bootstrap_servers="b:1", topic_profiles={"a": TopicProfile(compression_type="lz4")})
    assert wanted == ["none", "lz4"]
