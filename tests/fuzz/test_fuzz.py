"""A short run of `python -m tests.fuzz`."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import pytest

from aiokprod._wire.message import Message
from tests.fuzz.batch import SHARES, tasks
from tests.fuzz.decoders import (
    OBJECT_TIMES,
    Finding,
    fuzz_decoders,
    fuzz_frames,
    hostile_counts,
    measured,
)
from tests.fuzz.live import fuzz_client
from tests.fuzz.mutations import Sample, corpus, responses


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(4))
def test_mutated_answers_are_decoded_or_refused(seed: int) -> None:
    figures = fuzz_decoders(50_000, seed)
    assert figures.decoded > 1_000
    assert figures.refused > 10_000


def test_mutated_streams_are_split_or_refused() -> None:
    figures = fuzz_frames(5_000, 1)
    assert figures.decoded > 500
    assert figures.refused > 500


@pytest.mark.parametrize("seed", range(3))
def test_client_survives_damaged_answers(seed: int) -> None:
    assert fuzz_client(150, seed).executions >= 150


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("message", "version"), list(responses()), ids=lambda value: getattr(value, "__name__", None)
)
def test_announced_counts_take_no_memory(message: type[Message], version: int) -> None:
    samples = [s for s in corpus(random_each=0) if (s.message, s.version) == (message, version)]
    assert sum(map(hostile_counts, samples)) > 0


def test_samples_reach_every_response_in_every_version() -> None:
    assert {(s.message, s.version) for s in corpus(random_each=1)} == set(responses())
    for sample in corpus(3):
        sample.message.decode(sample.data, sample.version)


def test_memory_beyond_the_bytes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = corpus(random_each=0)[0]

    class Greedy:
        __name__ = "Greedy"

        @staticmethod
        def decode(data: bytes, version: int) -> bytearray:
            return bytearray(100_000)

    with pytest.raises(Finding, match="bytes of memory"):
        measured(Sample(cast(Any, Greedy), sample.version, sample.data), sample.data)


@pytest.mark.parametrize(("times", "found"), [(2, True), (10, False)])
def test_objects_of_what_is_there_may_take_ten_times_the_bytes(times: int, found: bool) -> None:
    class Objects:
        __name__ = "Objects"

        @staticmethod
        def decode(data: bytes, version: int) -> bytearray:
            return bytearray(9 * len(data))

    sample = corpus(random_each=0)[0]
    with pytest.raises(Finding) if found else contextlib.nullcontext():
        measured(Sample(cast(Any, Objects), sample.version, sample.data), bytes(16_384), times)


def test_undamaged_answers_take_at_most_ten_times_their_bytes() -> None:
    samples = [sample for seed in range(6) for sample in corpus(seed) if len(sample.data) > 1_000]
    assert len(samples) > 50
    taken = [measured(sample, sample.data, OBJECT_TIMES) / len(sample.data) for sample in samples]
    assert max(taken) > 4, "the limit of twice the frame would be wrong for them"


def test_tasks_share_out_all_executions() -> None:
    found = tasks(list(SHARES), 1_000_000, 1)
    assert sum(size for _, size, _ in found) == 1_000_000
    assert len({seed for _, _, seed in found}) == len(found)
