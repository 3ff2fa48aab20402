"""The scripts: error codes of every response, broken connections, throttling, leader changes,
invalid responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiokprod._errors import Code
from tests.differential.script import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    API_NAMES,
    API_VERSIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    MODES,
    PRODUCE,
    SHORT,
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
from tests.reference.error_codes import RETRIABLE_IN_JAVA

UNKNOWN_CODES: Final = (200, 9999, -77)
ALL_CODES: Final = tuple(sorted({int(code) for code in Code} - {0})) + UNKNOWN_CODES
RETRIABLE: Final = tuple(sorted(RETRIABLE_IN_JAVA))
SPECIAL: Final = (
    -1, 1, 8, 10, 17, 18, 21, 22, 24, 25, 27, 29, 30, 31, 32, 33, 34, 35, 42, 43, 44, 45, 46, 47,
    48, 49, 50, 52, 53, 54, 55, 58, 59, 60, 76, 82, 87, 90, 110, 113, 120, 129, *UNKNOWN_CODES,
)  # fmt: skip
TIMES: Final[tuple[int | None, ...]] = (1, 2, None)
TXN_MODES: Final[tuple[Mode, ...]] = ("tv1", "tv2")
INIT, BEGIN, END, OFFSETS = Call("init"), Call("begin"), Call("end"), Call("offsets")


def _count(times: int | None) -> str:
    return {1: "once", 2: "twice", None: "always"}.get(times, f"{times}x")


def _limits(times: int | None) -> tuple[tuple[str, str], ...]:
    return SHORT if times is None else ()


def story(mode: Mode, *faults: Step, count: int = 2) -> tuple[Step, ...]:
    """A first record, then the faults, then `count` records at once (a second transaction)."""
    if mode in TXN_MODES:
        return (INIT, BEGIN, Send(0), END, BEGIN, *faults, Send(0, count), END)
    return (Send(0), Wait(), *faults, Send(0, count), Wait())


def from_start(mode: Mode, *faults: Step, offsets: bool = False) -> tuple[Step, ...]:
    """Put the faults before the first request of the producer."""
    if mode in TXN_MODES:
        more = (OFFSETS,) if offsets else ()
        return (*faults, INIT, BEGIN, Send(0), Wait(), *more, Send(0, 2), END)
    return (*faults, Send(0, 2), Wait())


def scripts() -> list[Script]:
    """Return all scripts, with unique names."""
    found = [
        *produce_codes(),
        *produce_codes_rest(),
        *last_attempts(),
        *produce_batches(),
        *api_codes(),
        *metadata_codes(),
        *breaks(),
        *throttles(),
        *moves(),
        *odd_metadata(),
        *odd_answers(),
        *producer_state(),
        *coordinators(),
        *backoffs(),
        *found_by_the_generator(),
    ]
    names = [script.name for script in found]
    twice = (
        {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
    )
    assert not twice, f"two scripts have one name: {sorted(twice)[:5]}"
    return found


def produce_codes() -> Iterator[Script]:
    """Produce responses with each code that some client treats specially."""
    for code in (*RETRIABLE, *SPECIAL):
        for append in (False, True):
            for times in TIMES:
                for mode in MODES:
                    fault = ProduceCode(code, times, append)
                    yield Script(
                        f"produce/{code}/{_count(times)}/{'appended' if append else 'not'}/{mode}",
                        "produce-codes",
                        mode,
                        story(mode, fault),
                        _limits(times),
                        delivers=times is not None and _delivered(code, append, mode),
                    )


def _delivered(code: int, append: bool, mode: Mode) -> bool:
    """Return True if records are delivered in spite of one or two responses with this code."""
    if mode == "idempotent" and code == Code.INVALID_PRODUCER_EPOCH:
        return not append
    return mode in ("idempotent", "plain") and code in RETRIABLE


def produce_codes_rest() -> Iterator[Script]:
    """Produce responses with codes that belong to other APIs."""
    for code in ALL_CODES:
        if code in RETRIABLE or code in SPECIAL:
            continue
        for append in (False, True):
            for mode in ("idempotent", "tv2"):
                yield Script(
                    f"produce/{code}/once/{'appended' if append else 'not'}/{mode}",
                    "produce-codes-rest",
                    mode,
                    story(mode, ProduceCode(code, 1, append)),
                )


def last_attempts() -> Iterator[Script]:
    """The last attempt that `retries` allows is refused, with and without an append."""
    for code in (*RETRIABLE, -1, 45, 46, 47, 59, 200):
        for append in (False, True):
            for mode in ("idempotent", "plain"):
                yield Script(
                    f"last-attempt/{code}/{'appended' if append else 'not'}/{mode}",
                    "last-attempts",
                    mode,
                    (
                        Send(0),
                        Wait(),
                        ProduceCode(code, 2, append),
                        Send(0),
                        Wait(),
                        Send(0, 2),
                        Wait(),
                    ),
                    (("retries", "1"),),
                )
    for code in (3, 6, 7, 19, 20, 56):
        yield Script(
            f"last-attempt/{code}/appended-then-not",
            "last-attempts",
            "idempotent",
            (
                Send(0),
                Wait(),
                ProduceCode(code, 1, True),
                ProduceCode(code, 1, False),
                Send(0),
                Wait(),
                Send(0, 2),
                Wait(),
            ),
            (("retries", "1"),),
        )


def produce_batches() -> Iterator[Script]:
    """Batches of several records, several partitions, several batches in flight."""
    for code in (*RETRIABLE, -1, 10, 18, 29, 45, 46, 47, 59, 87, 200):
        for append in (False, True):
            for mode in ("idempotent", "tv2"):
                base = f"batch/{code}/{'appended' if append else 'not'}/{mode}"
                fault = ProduceCode(code, 1, append)
                yield Script(base, "batches", mode, story(mode, fault, count=3), batching=True)
                head: tuple[Step, ...] = (INIT, BEGIN) if mode == "tv2" else ()
                tail: tuple[Step, ...] = (END,) if mode == "tv2" else (Wait(),)
                # The second of five batches in flight.
                yield Script(
                    f"{base}/second-of-five",
                    "batches",
                    mode,
                    (
                        *head,
                        Send(0),
                        Wait(),
                        ProduceCode(code, 1, append, skip=1),
                        Send(0, 5),
                        *tail,
                    ),
                )
                # One partition of two is refused.
                yield Script(
                    f"{base}/one-partition",
                    "batches",
                    mode,
                    (
                        *head,
                        Send(0),
                        Send(2),
                        Wait(),
                        fault,
                        Send(0),
                        Send(2),
                        Send(0),
                        Send(2),
                        *tail,
                    ),
                )


def _api_modes(api: int) -> tuple[Mode, ...]:
    if api == INIT_PRODUCER_ID:
        return ("idempotent", "tv1", "tv2")
    if api in (ADD_PARTITIONS, ADD_OFFSETS):
        return ("tv1",)
    return TXN_MODES


CORE_CODES: Final = (
    -1,
    3,
    7,
    13,
    14,
    15,
    16,
    19,
    20,
    22,
    25,
    27,
    29,
    30,
    31,
    35,
    41,
    42,
    44,
    47,
    48,
    49,
    50,
    51,
    52,
    53,
    55,
    56,
    58,
    59,
    74,
    82,
    88,
    89,
    90,
    100,
    110,
    113,
    120,
    200,
)


def api_codes() -> Iterator[Script]:
    """Error codes for requests about producer ids and transactions, executed by the broker or
    not."""
    apis = (
        FIND_COORDINATOR,
        INIT_PRODUCER_ID,
        ADD_PARTITIONS,
        ADD_OFFSETS,
        TXN_OFFSET_COMMIT,
        END_TXN,
    )
    for api in apis:
        for code in CORE_CODES:
            for process in (False, True):
                if process and api == FIND_COORDINATOR:
                    continue  # FindCoordinator has no effect to execute
                for times in (1, None):
                    for mode in _api_modes(api):
                        offsets = api in (ADD_OFFSETS, TXN_OFFSET_COMMIT)
                        done = "done" if process else "not"
                        yield Script(
                            f"{API_NAMES[api]}/{code}/{_count(times)}/{done}/{mode}",
                            f"{API_NAMES[api]}-codes",
                            mode,
                            from_start(mode, ApiCode(api, code, times, process), offsets=offsets),
                            _limits(times),
                        )
    for api in apis:
        for code in ALL_CODES:
            if code not in CORE_CODES:
                mode = _api_modes(api)[-1]
                offsets = api in (ADD_OFFSETS, TXN_OFFSET_COMMIT)
                yield Script(
                    f"{API_NAMES[api]}/{code}/once/not/{mode}",
                    f"{API_NAMES[api]}-codes-rest",
                    mode,
                    from_start(mode, ApiCode(api, code, 1), offsets=offsets),
                )


def metadata_codes() -> Iterator[Script]:
    """Metadata responses with error codes: of a topic, of partitions, of the whole response."""
    for code in ALL_CODES:
        for times in (1, None):
            yield Script(
                f"metadata/{code}/{_count(times)}",
                "metadata-codes",
                "idempotent",
                from_start("idempotent", ApiCode(METADATA, code, times)),
                _limits(times),
                # A single odd response is not accepted, unless it concerns the topic itself.
                delivers=times is not None and code not in (17, 29),
            )
    for what in (
        "topic-error",
        "topic-error-bare",
        "partition-error",
        "partition-error-leaderless",
    ):
        for code in (-1, 3, 5, 6, 7, 9, 13, 17, 29, 56, 72, 100, 103, 200):
            for times in (1, 2, None):
                for mode in ("idempotent", "plain"):
                    yield Script(
                        f"{what}/{code}/{_count(times)}/{mode}",
                        "metadata-codes",
                        mode,
                        from_start(mode, Odd(what, times, value=code)),
                        _limits(times),
                    )
    for code in (3, 5, 6, 9, 72):
        for times in (1, None):
            # Known metadata is requested again after a leader error.
            yield Script(
                f"metadata-later/{code}/{_count(times)}",
                "metadata-codes",
                "idempotent",
                (
                    Send(0),
                    Wait(),
                    ApiCode(METADATA, code, times),
                    ProduceCode(6, 1, hint=False),
                    Send(0, 2),
                    Wait(),
                ),
                _limits(times),
            )


def breaks() -> Iterator[Script]:
    """Connections that break before and after the request was carried out."""
    hows: tuple[How, ...] = ("reset", "half", "close", "garbage", "correlation", "silent")
    for how in hows:
        limits = SILENT if how == "silent" else ()
        for process in (False, True):
            done = "done" if process else "not"
            for times in TIMES:
                settings = SHORT if times is None else limits
                for mode in MODES:
                    apis = [PRODUCE, METADATA]
                    if mode != "plain":
                        apis.append(INIT_PRODUCER_ID)
                    if mode in TXN_MODES:
                        apis += [FIND_COORDINATOR, TXN_OFFSET_COMMIT, END_TXN]
                    if mode == "tv1":
                        apis += [ADD_PARTITIONS, ADD_OFFSETS]
                    if times == 2 and how not in ("reset", "silent"):
                        continue
                    for api in apis:
                        if process and api in (METADATA, FIND_COORDINATOR):
                            continue
                        fault = Break(api, how, times, process)
                        offsets = api in (ADD_OFFSETS, TXN_OFFSET_COMMIT)
                        steps = from_start(mode, fault, offsets=offsets)
                        if api == PRODUCE:
                            steps = story(mode, fault)
                        yield Script(
                            f"break/{API_NAMES[api]}/{how}/{_count(times)}/{done}/{mode}",
                            "breaks",
                            mode,
                            steps,
                            settings,
                        )
        yield Script(
            f"break/{API_NAMES[API_VERSIONS]}/{how}/once",
            "breaks",
            "idempotent",
            from_start("idempotent", Break(API_VERSIONS, how, 1)),
            limits,
        )


def throttles() -> Iterator[Script]:
    """Responses with a throttle time."""
    for milliseconds in (1, 20, 60):
        for mode in MODES:
            for api in (None, PRODUCE, METADATA, INIT_PRODUCER_ID, FIND_COORDINATOR, END_TXN):
                name = "all" if api is None else API_NAMES[api]
                fault = Throttle(milliseconds, api)
                yield Script(
                    f"throttle/{milliseconds}/{name}/{mode}",
                    "throttles",
                    mode,
                    (*from_start(mode, fault, offsets=True), *story_tail(mode)),
                )
                if milliseconds == 20 and api in (None, PRODUCE):
                    for code in (6, 7, 19, 56):
                        yield Script(
                            f"throttle/{milliseconds}/{name}/{mode}/code-{code}",
                            "throttles",
                            mode,
                            story(mode, fault, ProduceCode(code, 1, True), count=3),
                        )


def story_tail(mode: Mode) -> tuple[Step, ...]:
    """Three more records."""
    if mode in TXN_MODES:
        return (BEGIN, Send(0), Send(1), Send(2), END)
    return (Send(0), Send(1), Send(2), Wait())


def moves() -> Iterator[Script]:
    """Leader changes, dead brokers and recreated topics."""
    events = (
        "move-leader",
        "move-leader-quietly",
        "disconnect",
        "recreate",
        "recreate-elsewhere",
        "expand",
        "take-leader",
        "forget-producers",
        "retain",
        "kill-leader",
    )
    for event in events:
        for mode in MODES:
            if mode in TXN_MODES and event in ("recreate", "recreate-elsewhere"):
                continue
            for number in (1, 2, 3):
                for hints in (True, False):
                    quiet: tuple[Step, ...] = () if hints else (Odd("produce-no-hints", None),)
                    brokers = 3 if event == "kill-leader" else 2
                    yield Script(
                        f"move/{event}/at-{number}/{'hints' if hints else 'no-hints'}/{mode}",
                        "moves",
                        mode,
                        story(mode, *quiet, When(PRODUCE, Do(event), number), count=4),
                        brokers=brokers,
                    )
            for code in (6, 3, 7, 20, 56):
                yield Script(
                    f"move/{event}/appended-{code}/{mode}",
                    "moves",
                    mode,
                    story(
                        mode,
                        When(PRODUCE, Do(event), 2),
                        ProduceCode(code, 1, True),
                        count=3,
                    ),
                    brokers=3 if event == "kill-leader" else 2,
                    racy="the topic is gone while batches are on their way"
                    if event.startswith("recreate")
                    else "",
                )
    for profile in ("2.8", "4.0", "3.9", "2.1"):
        for event in ("recreate", "recreate-elsewhere", "move-leader", "move-leader-quietly"):
            for ids in (True, False):
                quiet = () if ids else (Odd("no-topic-ids", None),)
                yield Script(
                    f"move/{profile}/{event}/{'ids' if ids else 'no-ids'}",
                    "moves",
                    "idempotent",
                    (
                        *quiet,
                        Send(0),
                        Wait(),
                        Do("move-leader"),
                        Do("move-leader"),
                        Do("move-leader"),
                        Send(0),
                        Wait(),
                        Do(event),
                        Send(0, 2),
                        Wait(),
                    ),
                    profile=profile,
                    delivers=True,
                )
    # A stale broker continues to name the old leader.
    for mode in MODES:
        for hints in (True, False):
            quiet = () if hints else (Odd("produce-no-hints", None),)
            yield Script(
                f"move/stale-views/{'hints' if hints else 'no-hints'}/{mode}",
                "moves",
                mode,
                story(
                    mode,
                    *quiet,
                    Do("freeze-views"),
                    Do("move-leader"),
                    When(PRODUCE, Do("refresh-views"), 3),
                    count=2,
                ),
            )


METADATA_EDITS: Final = (
    "leader-minus-1",
    "leader-minus-1-one",
    "leader-unknown",
    "leader-other",
    "no-partitions",
    "fewer-partitions",
    "no-topics",
    "no-brokers",
    "empty",
    "no-controller",
    "null-cluster-id",
    "other-cluster-id",
    "only-this-broker",
    "no-replicas",
    "other-topic-id",
    "reversed",
    "twice",
    "no-topic-ids",
)


def odd_metadata() -> Iterator[Script]:
    """Stale and invalid metadata, at the beginning and later."""
    for what in METADATA_EDITS:
        for times in (1, 2, None):
            racy = ""
            if what == "leader-other" and times is None:
                racy = "the repetition leaves before or after the wrong leader is told"
            for mode in MODES:
                yield Script(
                    f"odd/{what}/{_count(times)}/first/{mode}",
                    "odd-metadata",
                    mode,
                    from_start(mode, Odd(what, times)),
                    _limits(times),
                )
                if times is None and mode in TXN_MODES:
                    continue
                yield Script(
                    f"odd/{what}/{_count(times)}/later/{mode}",
                    "odd-metadata",
                    mode,
                    story(mode, Odd(what, times), ProduceCode(6, 1, hint=False)),
                    _limits(times),
                    racy=racy,
                )
                yield Script(
                    f"odd/{what}/{_count(times)}/moved/{mode}",
                    "odd-metadata",
                    mode,
                    story(mode, Odd(what, times), Odd("produce-no-hints", None), Do("move-leader")),
                    _limits(times),
                )
    for epoch in (-1, 0, 5):
        for event in ("move-leader", "move-leader-quietly", "recreate-elsewhere"):
            for hints in (True, False):
                for mode in ("idempotent", "plain"):
                    quiet: tuple[Step, ...] = () if hints else (Odd("produce-no-hints", None),)
                    # Epochs of earlier responses are followed by lower ones, or by none.
                    yield Script(
                        f"epochs/{epoch}/{event}/{'hints' if hints else 'no-hints'}/{mode}",
                        "odd-metadata",
                        mode,
                        (
                            Send(0),
                            Wait(),
                            Do("move-leader"),
                            Send(0),
                            Wait(),
                            Odd("epoch", None, value=epoch),
                            *quiet,
                            Do(event),
                            Send(0, 2),
                            Wait(),
                        ),
                        (("delivery.timeout.ms", "2500"), ("request.timeout.ms", "800")),
                        # Neither client accepts lower epochs of the same topic id. Topics without
                        # ids are in `moves`.
                        delivers=epoch != 0 or event == "recreate-elsewhere",
                    )
    for times in (1, 2):
        # Epochs that are higher in one response than in later ones are not accepted either.
        yield Script(
            f"epochs/higher/{_count(times)}",
            "odd-metadata",
            "idempotent",
            (
                Odd("epoch-plus", times, value=9),
                Send(0),
                Wait(),
                Odd("produce-no-hints", None),
                Do("move-leader"),
                Send(0, 2),
                Wait(),
            ),
            (("delivery.timeout.ms", "2500"), ("request.timeout.ms", "800")),
            racy="the higher epochs come with the topic's first answer, or with one before it",
        )


def odd_answers() -> Iterator[Script]:
    """Responses that lack the data that was requested."""
    produce = (
        "produce-empty",
        "produce-no-partitions",
        "produce-other-partition",
        "produce-twice",
        "produce-strangers",
        "produce-offset-minus-1",
        "produce-hint-unknown-node",
    )
    for what in produce:
        for times in (1, 2, None):
            for mode in MODES:
                yield Script(
                    f"odd/{what}/{_count(times)}/{mode}",
                    "odd-answers",
                    mode,
                    story(mode, Odd(what, times)),
                    _limits(times),
                )
    others = (
        "coordinator-minus-1",
        "coordinator-empty-host",
        "coordinator-other-node",
        "coordinator-wrong",
        "coordinator-other-key",
        "coordinator-empty-key",
        "coordinators-none",
        "producer-id-minus-1",
        "add-partitions-empty",
        "offsets-empty",
        "end-txn-id-minus-1",
    )
    for what in others:
        for times in (1, 2, None):
            for mode in TXN_MODES:
                yield Script(
                    f"odd/{what}/{_count(times)}/{mode}",
                    "odd-answers",
                    mode,
                    from_start(mode, Odd(what, times), offsets=True),
                    _limits(times),
                )
    for times in (1, 2, None):
        yield Script(
            f"odd/producer-id-minus-1/{_count(times)}/idempotent",
            "odd-answers",
            "idempotent",
            from_start("idempotent", Odd("producer-id-minus-1", times)),
            _limits(times),
        )
    for what, value in [("no-api-keys", 0), ("versions-error", 35), ("versions-error", -1)] + [
        ("without-api", api) for api in (0, 3, 10, 22, 24, 25, 26, 28)
    ]:
        for times in (1, None):
            for mode in MODES:
                yield Script(
                    f"odd/{what}/{value}/{_count(times)}/{mode}",
                    "odd-answers",
                    mode,
                    from_start(mode, Odd(what, times, value=value), offsets=True),
                    _limits(times),
                )


def producer_state() -> Iterator[Script]:
    """Brokers that lose the state of producers, and transactions that other producers end."""
    for event in ("fence", "expire-transaction", "forget-transactions"):
        for mode in TXN_MODES:
            for api, number in ((PRODUCE, 2), (PRODUCE, 3), (END_TXN, 2), (TXN_OFFSET_COMMIT, 1)):
                yield Script(
                    f"state/{event}/{API_NAMES[api]}-{number}/{mode}",
                    "producer-state",
                    mode,
                    (
                        INIT,
                        BEGIN,
                        Send(0),
                        END,
                        BEGIN,
                        When(api, Do(event), number - 1 or 1),
                        Send(0),
                        Wait(),
                        OFFSETS,
                        Send(0, 2),
                        END,
                        BEGIN,
                        Send(1),
                        END,
                    ),
                )
    for profile in ("4.3", "2.1", "1.0"):
        for event in ("forget-producers", "retain"):
            for code in (None, 45, 59, 7):
                faults: tuple[Fault, ...] = () if code is None else (ProduceCode(code, 1),)
                yield Script(
                    f"state/{profile}/{event}/{code}",
                    "producer-state",
                    "idempotent",
                    (Send(0, 2), Wait(), Do(event), *faults, Send(0, 3), Wait(), Send(0), Wait()),
                    profile=profile,
                )
    for profile in ("1.0", "2.1", "2.8", "3.9", "4.0"):
        for mode in MODES:
            if mode == "tv2" and profile in ("1.0", "2.1", "2.8", "3.9"):
                continue
            yield Script(
                f"state/{profile}/plain-story/{mode}",
                "producer-state",
                mode,
                (*from_start(mode, offsets=True), *story_tail(mode)),
                profile=profile,
            )
            for code in (3, 6, 7, 20, 56, 47, 59):
                yield Script(
                    f"state/{profile}/appended-{code}/{mode}",
                    "producer-state",
                    mode,
                    story(mode, ProduceCode(code, 1, True)),
                    profile=profile,
                )


def coordinators() -> Iterator[Script]:
    """Coordinators that are missing in the metadata, die, or send wrong responses."""
    for mode in TXN_MODES:
        for times in (1, 2, None):
            yield Script(
                f"coordinator/not-in-metadata/{_count(times)}/{mode}",
                "coordinators",
                mode,
                (Odd("no-coordinator", times), INIT, BEGIN, Send(1), END),
                brokers=2,
            )
        for api in (INIT_PRODUCER_ID, END_TXN, TXN_OFFSET_COMMIT):
            yield Script(
                f"coordinator/killed-at-{API_NAMES[api]}/{mode}",
                "coordinators",
                mode,
                (When(api, Do("kill-coordinator")), INIT, BEGIN, Send(0), Wait(), OFFSETS, END),
                brokers=3,
            )
            for code in (14, 15, 16):
                for process in (False, True):
                    # The coordinator responds like this twice, and the application has to wait
                    # between the two responses.
                    yield Script(
                        f"coordinator/{code}-at-{API_NAMES[api]}/"
                        f"{'done' if process else 'not'}/{mode}",
                        "coordinators",
                        mode,
                        (
                            ApiCode(api, code, 2, process),
                            INIT,
                            BEGIN,
                            Send(0),
                            Wait(),
                            OFFSETS,
                            END,
                        ),
                    )
        for code in (14, 15, 16, 51):
            for process in (False, True):
                # EndTxn of an abort gets this response, or AddPartitionsToTxn just before an abort.
                yield Script(
                    f"abort/{code}-at-end-txn/{'done' if process else 'not'}/{mode}",
                    "coordinators",
                    mode,
                    (
                        INIT,
                        BEGIN,
                        Send(0),
                        Wait(),
                        ApiCode(END_TXN, code, 1, process),
                        Call("abort"),
                        BEGIN,
                        Send(0),
                        END,
                    ),
                )
        for code in (19, 20, 7, 56, -1, 200):
            yield Script(
                f"abort/{code}-at-end-txn/done/{mode}",
                "coordinators",
                mode,
                (
                    INIT,
                    BEGIN,
                    Send(0),
                    Wait(),
                    ApiCode(END_TXN, code, 1, True),
                    Call("abort"),
                    BEGIN,
                    Send(0),
                    END,
                ),
            )
        for code in (15, 16):
            yield Script(
                f"abort/add-partitions-{code}/{mode}",
                "coordinators",
                mode,
                (
                    INIT,
                    BEGIN,
                    ApiCode(ADD_PARTITIONS, code, None, True),
                    Send(0),
                    Pause(30),
                    Call("abort"),
                    Clear(),
                    BEGIN,
                    Send(0),
                    END,
                ),
                SHORT,
            )
            # The commit was executed, and another instance takes over before it is repeated.
            yield Script(
                f"end-txn/{code}-then-fenced/{mode}",
                "coordinators",
                mode,
                (
                    INIT,
                    BEGIN,
                    Send(0),
                    Wait(),
                    ApiCode(END_TXN, code, 1, True),
                    When(END_TXN, Do("fence"), 2),
                    END,
                ),
            )


def backoffs() -> Iterator[Script]:
    """Error responses for long enough to see the pauses between the attempts of a client."""
    both: tuple[Mode, ...] = ("idempotent", "plain")
    for code in (6, 7, 19, 20):
        for mode in both:
            yield Script(
                f"backoff/{code}/{mode}",
                "backoff",
                mode,
                (Send(0), Wait(), ProduceCode(code, None), Send(0), Wait()),
                (
                    ("retry.backoff.ms", "50"),
                    ("retry.backoff.max.ms", "400"),
                    ("delivery.timeout.ms", "6000"),
                    ("request.timeout.ms", "2500"),
                ),
            )


def found_by_the_generator() -> Iterator[Script]:
    """Random scripts with findings that no other script produced, reduced to the relevant steps."""

    def named(
        name: str,
        mode: Mode,
        *steps: Step,
        settings: tuple[tuple[str, str], ...] = (),
        batching: bool = False,
        delivers: bool = False,
    ) -> Script:
        return Script(
            f"found/{name}", "found", mode, steps, settings, batching=batching, delivers=delivers
        )

    yield named(  # seed 1, 4207
        "dead-leader-and-silent-metadata",
        "plain",
        Break(METADATA, "silent", 2, skip=1),
        Send(2),
        When(PRODUCE, Do("kill-leader"), 3),
        Send(0, 2),
        ProduceCode(100),
        Send(0, 3),
        Wait(),
        settings=SILENT,
        delivers=True,
    )
    yield named(  # seed 1, 4428
        "parts-in-doubt",
        "idempotent",
        ProduceCode(10, 3),
        Send(0, 3),
        Break(PRODUCE, "close", 2, process=False, skip=1),
        Send(0),
        Wait(),
        batching=True,
    )
    for how, fault in (
        ("cut", Break(PRODUCE, "half", process=False)),
        ("leader-moved", When(PRODUCE, Do("move-leader"))),
    ):
        for mode in MODES:
            yield named(  # seed 1, 5347 and 5460
                f"too-large-after-{how}/{mode}",
                mode,
                *((INIT, BEGIN) if mode in TXN_MODES else ()),
                fault,
                ProduceCode(10),
                Send(0, 4),
                END if mode in TXN_MODES else Wait(),
                batching=True,
                delivers=True,
            )
    yield named(  # seed 1, 18341
        "too-large-after-append",
        "tv2",
        INIT,
        ProduceCode(15, 2, append=True),
        BEGIN,
        Send(0, 2),
        ProduceCode(10),
        Wait(),
        Send(2),
        END,
        batching=True,
    )
    yield named(  # seed 1, 6135
        "gap-behind-a-cut",
        "idempotent",
        ProduceCode(43, 2, skip=2),
        Send(0, 3),
        When(PRODUCE, Do("move-leader"), 3),
        Send(0, 4),
        Break(PRODUCE, "half", 2, process=False, skip=1),
        Wait(),
    )
    yield named(  # seed 1, 6599
        "refusal-beside-a-stranger",
        "tv1",
        ProduceCode(18),
        INIT,
        BEGIN,
        Send(0),
        Odd("produce-strangers"),
        Wait(),
        OFFSETS,
        Call("abort"),
    )
    yield named(  # seed 1, 15991
        "wrong-leaders-twice",
        "plain",
        Send(2, 4),
        Odd("leader-other", 2),
        Pause(1),
        Send(0),
        Wait(),
        batching=True,
    )
