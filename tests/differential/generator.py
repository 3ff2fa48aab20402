"""Scripts composed at random. Equal seeds give equal scripts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from tests.differential.catalogue import RETRIABLE
from tests.differential.script import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    MODES,
    PRODUCE,
    SILENT,
    TXN_OFFSET_COMMIT,
    ApiCode,
    Break,
    Call,
    Clear,
    Do,
    Fault,
    How,
    Mode,
    Odd,
    Pause,
    ProduceCode,
    Script,
    Send,
    Step,
    Throttle,
    Wait,
    When,
)

GENERATED: Final = "generated"
"""Family of these scripts; names are generated/SEED/NUMBER."""

LEGAL_PRODUCE: Final = (3, 5, 6, 7, 9, 13, 19, 20, 56, 72, 74)
"""Codes that a broker may return before or after the append, with double weight."""

BEFORE_APPEND: Final = (2, 10, 18, 29, 32, 43, 44, 45, 47, 53, 76, 87, 100)
COORDINATOR: Final = (7, 14, 15, 16, 19, 20, 51)
METADATA_EDITS: Final = ("leader-minus-1", "leader-minus-1-one", "leader-other", "leader-unknown",
    "no-partitions", "fewer-partitions", "no-topics", "no-brokers", "empty", "only-this-broker",
    "no-replicas", "reversed", "epoch", "no-controller")  # fmt: skip
PRODUCE_EDITS: Final = ("produce-no-hints", "produce-hint-unknown-node", "produce-twice",
    "produce-empty", "produce-strangers")  # fmt: skip
COORDINATOR_EDITS: Final = ("coordinator-minus-1", "coordinator-wrong", "coordinator-empty-key",
    "no-coordinator", "producer-id-minus-1")  # fmt: skip
DEEDS: Final = ("move-leader", "move-leader", "disconnect", "expand", "move-leader-quietly",
    "kill-leader", "take-leader")  # fmt: skip


def generated(count: int, seed: int) -> Iterator[Script]:
    """Yield `count` scripts. Script n of a seed does not depend on `count`."""
    for number in range(count):
        yield composed(seed, number)


def composed(seed: int, number: int) -> Script:
    """Compose one script."""
    rng = random.Random(f"{seed}/{number}")
    mode: Mode = rng.choice(MODES)
    profile = "4.3"
    if rng.random() < 0.2:
        profile = rng.choice(("4.0",) if mode == "tv2" else ("2.8", "3.9", "4.0"))
    transactional = mode in ("tv1", "tv2")
    steps = list(_transactions(rng) if transactional else _stretches(rng))
    faults = [fault for _ in range(rng.randint(1, 4)) for fault in _fault(rng, mode)]
    for fault in faults:
        steps.insert(rng.randint(0, len(steps) - 1), fault)
    silent = any(isinstance(one, Break) and one.how == "silent" for one in faults)
    settings = SILENT if silent else ()
    racy = ""
    if not transactional and rng.random() < 0.1:
        settings = (*settings, ("retries", str(rng.randint(1, 3))))
        racy = "which attempt is the last one depends on what comes first"
    return Script(
        f"{GENERATED}/{seed}/{number}",
        GENERATED,
        mode,
        tuple(steps),
        settings,
        profile,
        batching=rng.random() < 0.25,
        brokers=rng.choice((2, 2, 3)),
        racy=racy,
    )


def _stretches(rng: random.Random) -> Iterator[Step]:
    for _ in range(rng.randint(1, 3)):
        for _ in range(rng.randint(1, 3)):
            yield Send(rng.choice((0, 0, 0, 1, 2)), rng.randint(1, 4))
            if rng.random() < 0.2:
                yield Pause(rng.choice((1, 5, 20)))
        yield Wait()


def _transactions(rng: random.Random) -> Iterator[Step]:
    yield Call("init")
    for _ in range(rng.randint(1, 3)):
        yield Call("begin")
        for _ in range(rng.randint(0, 3)):
            yield Send(rng.choice((0, 0, 0, 1, 2)), rng.randint(1, 3))
            if rng.random() < 0.3:
                yield Wait()
        if rng.random() < 0.3:
            yield Call("offsets")
        if rng.random() < 0.15:
            yield Wait()
            yield Call("abort")
        else:
            yield Call("end")


def _fault(rng: random.Random, mode: Mode) -> Iterator[Fault | Clear]:
    kind = rng.choice(("produce", "produce", "produce", "api", "break", "do", "odd", "throttle"))
    times = rng.choice((1, 1, 1, 2, 3))
    if kind == "produce":
        yield _produce_code(rng, times)
    elif kind == "api":
        yield _api_code(rng, mode, times)
    elif kind == "break":
        hows: tuple[How, ...] = ("reset", "reset", "half", "close", "silent")
        api = rng.choice(_apis(mode))
        yield Break(api, rng.choice(hows), min(times, 2), rng.random() < 0.5, rng.randint(0, 2))
    elif kind == "throttle":
        yield Throttle(rng.choice((1, 5, 30)), rng.choice((None, PRODUCE, METADATA)), times)
    elif kind == "odd":
        yield from _odd(rng, mode, times)
    else:
        yield from _deed(rng)


def _produce_code(rng: random.Random, times: int) -> ProduceCode:
    if rng.random() < 0.75:
        code, append = rng.choice((*LEGAL_PRODUCE, *LEGAL_PRODUCE, *RETRIABLE)), rng.random() < 0.5
        if code in (2, 14, 19, 51, 100, 103):
            append = False
    else:
        code, append = rng.choice(BEFORE_APPEND), False
    return ProduceCode(
        code,
        times,
        append,
        rng.choice((0, 0, 0, 1)),
        rng.choice((0, 0, 1, 2)),
        hint=rng.random() < 0.7,
    )


def _apis(mode: Mode) -> list[int]:
    apis = [PRODUCE, PRODUCE, METADATA]
    if mode != "plain":
        apis.append(INIT_PRODUCER_ID)
    if mode in ("tv1", "tv2"):
        apis += [FIND_COORDINATOR, END_TXN, TXN_OFFSET_COMMIT]
    if mode == "tv1":
        apis += [ADD_PARTITIONS, ADD_OFFSETS]
    return apis


def _api_code(rng: random.Random, mode: Mode, times: int) -> ApiCode:
    api = rng.choice([one for one in _apis(mode) if one != PRODUCE])
    if api == METADATA:
        return ApiCode(api, rng.choice((3, 5, 7, 72)), times, skip=rng.randint(0, 1))
    process = api != FIND_COORDINATOR and rng.random() < 0.5
    codes = [code for code in COORDINATOR if code != 51 or not process]
    return ApiCode(api, rng.choice(codes), times, process, rng.randint(0, 1))


def _odd(rng: random.Random, mode: Mode, times: int) -> Iterator[Fault]:
    what = rng.choice((*METADATA_EDITS, *PRODUCE_EDITS))
    if mode in ("tv1", "tv2") and rng.random() < 0.4:
        what = rng.choice(COORDINATOR_EDITS)
    value = rng.choice((-1, 0)) if what == "epoch" else 0
    yield Odd(what, times, rng.choice((0, 0, 1)), value)


def _deed(rng: random.Random) -> Iterator[Fault]:
    what = rng.choice(DEEDS)
    partition = rng.choice((0, 0, 1))
    yield When(PRODUCE, Do(what, partition), rng.randint(1, 4))
