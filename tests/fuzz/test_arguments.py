"""Settings and arguments of all kinds: only documented errors, and no partial execution of a
call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError, KafkaError, Outcome
from tests.scenarios.scenario_helpers import harness, play
from tests.secret_leak_check import CANARY

NAMES = sorted(field.name for field in dataclasses.fields(ProducerConfig))

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.integers(), st.floats(), st.binary(max_size=5),
    st.text(max_size=5), st.sampled_from(
        ["all", "-1", "", "\udc80", "\0", "a\r\nb", "none", "zstd", "1e400", "0x10", "٣",
         "localhost", "localhost:9092", "h:1,,h:2", "[::1]:9092", "host:99999", "${HOME}",
         "file:///etc/passwd",
         2**31 - 1, 2**31, 2**63, -(2**63), math.inf, math.nan, object(), [], {}, (), b"all"]
    ),
    st.lists(st.text(max_size=3), max_size=2), st.dictionaries(st.text(max_size=2), st.none()),
)  # fmt: skip

RELAXED = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@RELAXED
@given(st.dictionaries(st.sampled_from([*NAMES, "acks", "no_such_setting"]), ANYTHING, max_size=4))
def test_settings_are_taken_or_refused_by_name(options: dict[str, Any]) -> None:
    options.setdefault("bootstrap_servers", "localhost:9092")
    refusal = _refusal(lambda: ProducerConfig(**options))
    if isinstance(refusal, TypeError):
        assert "no_such_setting" in str(refusal)
        assert "no_such_setting" in options
    elif refusal is None:
        assert repr(ProducerConfig(**options))


# Hypothesis also tries words from our modules. Errors show unknown names, which is allowed.
UNKNOWN_NAMES = st.text(max_size=12).filter(lambda name: not CANARY.search(name))


@RELAXED
@given(st.dictionaries(UNKNOWN_NAMES, ANYTHING, max_size=4))
def test_mappings_of_settings_are_taken_or_refused(options: dict[str, Any]) -> None:
    mapping = {"bootstrap.servers": "localhost:9092", **options}
    refusal = _refusal(lambda: ProducerConfig.from_mapping(mapping))
    assert not isinstance(refusal, TypeError)


def _refusal(make: Callable[[], object]) -> Exception | None:
    """Return the documented error of a call, or None if it succeeded."""
    try:
        make()
    except (ConfigError, TypeError) as error:
        return error
    return None


HEADERS = st.lists(
    st.tuples(st.one_of(st.text(max_size=4), ANYTHING), st.one_of(st.binary(max_size=4), ANYTHING)),
    max_size=2,
)
ARGUMENTS = st.fixed_dictionaries(
    {"topic": st.one_of(st.just("t"), ANYTHING), "value": st.one_of(st.binary(), ANYTHING)},
    optional={
        "key": st.one_of(st.binary(max_size=8), ANYTHING),
        "partition": st.one_of(st.integers(0, 2), ANYTHING),
        "timestamp_ms": st.one_of(st.integers(0, 2**62), ANYTHING),
        "headers": st.one_of(HEADERS, ANYTHING),
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ARGUMENTS, min_size=4, max_size=16))
def test_arguments_of_send_are_taken_or_refused_and_good_records_go_on(
    calls: list[dict[str, Any]],
) -> None:
    async def main() -> None:
        async with harness(partitions=3, max_block_ms=100, cluster={"auto_create": False}) as (
            cluster,
            producer,
            _,
        ):
            taken = 0
            outcomes = set()
            for arguments in calls:
                try:
                    await producer.send(**arguments)
                    taken += 1
                except KafkaError as error:
                    outcomes.add(error.outcome)
                await producer.send("t", b"good", partition=0)
            assert outcomes <= {Outcome.NOT_SENT, Outcome.REJECTED}
            stored = sum(map(len, cluster.logs("t")))
            assert stored == taken + len(calls)
            metrics = producer.metrics()
            assert metrics["buffer_available_bytes"] == metrics["buffer_total_bytes"]
            assert cluster.violations == []

    play(main)
