"""The meaning of a seed: the producer's options, the cluster and the possible faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from aiokprod import TopicProfile
from aiokprod._wire.compression import CODEC_NAMES

TOPICS = ("t", "u")
PARTITIONS = 3
PROFILES = ("2.1", "2.8", "3.9", "4.0", "4.3", "4.3", "4.3")
OLD_PROFILES = ("0.11", "1.0", "2.4")
"""Version profiles drawn for the temperament `old_versions`."""

TEMPERAMENTS = (
    "leaderless_without_code", "epochs_missing", "epochs_zero", "no_topic_ids",
    "differing_metadata", "null_in_errors", "errors_after_append", "unknown_codes", "throttling",
    "slower_than_timeouts", "capped_versions", "old_versions", "slow_handshakes",
)  # fmt: skip
"""Names of methods of `Temperaments`. Two of three seeds have one to three of them."""

HABITS = ("serializer", "interceptor", *("",) * 14)

OBJECTS = (
    "key_serializer", "value_serializer", "header_serializer", "async_serializer", "partitioner",
    "interceptor", "interceptor", "plugin", "plugin",
)  # fmt: skip
"""User objects that an application may pass to its producer (`user_objects.UserObjects`)."""
OBJECTS_EVERY = 3
"""One seed in this number has one to four such objects."""

UNKNOWN_CODES = (500, 9_999, -77)
"""Error codes that no version of Kafka defines."""

MENU = (
    "kill", "stop", "pause", "move", "controller", "fail", "duplicate", "reset", "blackhole",
    "half_open", "throttle", "stall", "clock", "cancel", "expand", "recreate", "retain", "vanish",
    "stale", "upgrade", "slow", "cut", "trickle", "shrink_limit", "strange", "fast_forward",
    "wait", "renumber", "lag", "interrupt", "reenter",
)  # fmt: skip
"""Names of methods of `Misfortunes`; each seed draws a subset of them (swarm testing)."""


RARE_TEMPERAMENTS = ("producer_ids_unavailable",)
"""Further temperaments of idempotent producers. Each of them is in one seed in `RARE_EVERY`."""
RARE_EVERY = 6

LAST_FAULTS = ("frozen_leader", "far_broker", "refused_connections")
"""Names of methods of `LastFault`. One seed in `LAST_FAULT_EVERY` has one of them."""
LAST_FAULT_EVERY = 12
RECREATED = "recreated_topic"
"""Another last fault, in the same share of the seeds with an idempotent producer."""

MOST_LATE_S = 0.05
"""Maximum delay of timers in such a seed: the fault is judged by how long an operation takes."""

STEPS = 30
"""Number of steps of the bad times. Each step ends with one fault."""

RARE_FAULTS = {"expiry": 10, "reinstallation": 10, "sessions": 6}
"""Each fault is in one seed in the given number, except as `_with_rare_faults` says. `RareFaults`
causes the first two; `Sessions` last for the whole run."""
WITHOUT_SESSIONS = ("0.11", "1.0", "2.1")
"""Versions before KIP-368."""

PROFILE_EVERY = 4
"""One seed in this number has a profile for one or both topics."""


@dataclass(frozen=True)
class Plan:
    """One seed, drawn completely before the run starts.

    Attributes:
        late_timers_s: maximum delay of a timer in seconds.
        executor_delay_s: seconds a worker thread takes to compress a batch.
        depth: maximum number of brokers that are down at the same time.
        ending: "heal" (all faults end), "close" (the producer is closed during faults) or
            "stranger" (other code cancels one of its tasks).
        producer_epoch: epoch of the first producer id.
        temperaments: names of methods of `Temperaments`.
        last_fault: name of a method of `LastFault` (of `LAST_FAULTS`, or `RECREATED`), or "".
        habit: "serializer" or "interceptor" if the application's object submits records itself.
        objects: serializers, a partitioner, interceptors and plug-ins (of `OBJECTS`).
        rare_faults: of `RARE_FAULTS`.
    """

    seed: int
    options: dict[str, Any]
    cluster: dict[str, Any]
    menu: tuple[str, ...]
    late_timers_s: float
    executor_delay_s: float
    depth: int
    ending: str
    producer_epoch: int
    temperaments: tuple[str, ...] = ()
    habit: str = ""
    last_fault: str = ""
    objects: tuple[str, ...] = ()
    rare_faults: tuple[str, ...] = ()

    @property
    def idempotent(self) -> bool:
        return bool(self.options["enable_idempotence"])

    @property
    def durable(self) -> bool:
        """True if acknowledged records must stay in the log (P1)."""
        return bool(self.options["acks"] == "all")

    @property
    def ordered(self) -> bool:
        """True if records must be stored in the order of submission (P3)."""
        return self.idempotent or (
            self.durable and self.options["max_in_flight_requests_per_connection"] == 1
        )

    @property
    def delivery_s(self) -> float:
        """The longest delivery timeout of all topics."""
        return max(map(self.delivery_s_of, TOPICS))

    def delivery_s_of(self, topic: str) -> float:
        """The delivery timeout of a topic."""
        timeout_ms = self.options["delivery_timeout_ms"]
        for pattern, profile in self.options.get("topic_profiles", {}).items():
            if fnmatchcase(topic, pattern):
                timeout_ms = profile.delivery_timeout_ms or timeout_ms
                break
        return float(timeout_ms) / 1000

    @property
    def block_s(self) -> float:
        return float(self.options["max_block_ms"]) / 1000


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed, which is always the same."""
    rng = random.Random(seed)
    options = _options(rng)
    cluster = _cluster(rng)
    if cluster["replication_s"] > 0.1 and options["request_timeout_ms"] < 3_000:
        # Brokers process a connection's requests one by one: five would take longer than a timeout.
        options["delivery_timeout_ms"] += 2_500
        options["request_timeout_ms"] = 3_000
    temperaments = _temperaments(seed, options, cluster)
    menu = rng.sample(MENU, rng.randrange(3, len(MENU) * 2 // 3))
    plan = Plan(
        seed=seed,
        options=options,
        cluster=cluster,
        menu=tuple(menu),
        late_timers_s=rng.choice((0.0, 0.0, 0.005, 0.05, 0.5)),
        executor_delay_s=rng.choice((0.0, 0.0, 0.03, 0.4)),
        depth=rng.choice((1, 1, 1, 2, 5)),
        ending=rng.choices(("heal", "close", "stranger"), (90, 6, 4))[0],
        producer_epoch=rng.choice((0, 0, 0, 32_765)),
        temperaments=temperaments,
        habit=random.Random(seed * 61 + 5).choice(HABITS),
    )
    plan = _with_recreated_topic(_with_last_fault(_with_rare_temperaments(plan)))
    return _with_rare_faults(_with_profile(_with_objects(plan)))


def _with_rare_faults(plan: Plan) -> Plan:
    """Draw rare faults from a separate generator, so that seeds without them stay the same. Seeds
    with a last fault get none: it is judged by durations, which rare faults would change."""
    rng = random.Random(plan.seed * 101 + 43)
    drawn = [name for name, every in RARE_FAULTS.items() if not rng.randrange(every)]
    if plan.last_fault or not drawn:
        return plan
    if "expiry" in drawn and not plan.idempotent:
        drawn.remove("expiry")
    if "sessions" in drawn and plan.cluster["version_profile"] in WITHOUT_SESSIONS:
        drawn.remove("sessions")
    options = dict(plan.options)
    if "expiry" in drawn:
        options["metadata_max_age_ms"] = 300_000  # avoids thousands of metadata requests in a pause
        options["metadata_max_idle_ms"] = 3_600_000  # dropping the topic would drop its sequences
    return replace(plan, options=options, rare_faults=tuple(drawn))


def _with_profile(plan: Plan) -> Plan:
    """Draw profiles for topics from a separate generator, so that seeds without one stay the
    same."""
    rng = random.Random(plan.seed * 97 + 41)
    if rng.randrange(PROFILE_EVERY) or plan.last_fault:
        return plan
    codecs = [*CODEC_NAMES]
    if {"old_versions", "capped_versions"} & set(plan.temperaments):
        codecs.remove("zstd")  # requires a version that brokers may not have (KIP-110)
    least_ms = plan.options["request_timeout_ms"] + 700
    if "slow_handshakes" in plan.temperaments:
        least_ms = max(15_000, least_ms)
    profile = TopicProfile(
        linger_ms=rng.choice((None, 0, 20, 300)),
        batch_size=rng.choice((None, 0, 300, 2_000, 15_000)),
        compression_type=rng.choice((None, *codecs)),
        delivery_timeout_ms=rng.choice((None, least_ms, 25_000, 60_000)),
    )
    profiles = {rng.choice(("u", "t*", "?")): profile}
    return replace(plan, options={**plan.options, "topic_profiles": profiles})


def _with_objects(plan: Plan) -> Plan:
    """Draw user objects from a separate generator, so that seeds without them stay the same. Seeds
    with a last fault get none: it is judged by durations, which user objects would change."""
    rng = random.Random(plan.seed * 89 + 37)
    if rng.randrange(OBJECTS_EVERY) or plan.habit or plan.last_fault:
        return plan
    return replace(plan, objects=tuple(sorted(rng.sample(OBJECTS, rng.choice((1, 2, 3, 4))))))


def _with_rare_temperaments(plan: Plan) -> Plan:
    """Draw rare temperaments from a separate generator, so that seeds without them stay the
    same."""
    rng = random.Random(plan.seed * 71 + 13)
    drawn = tuple(name for name in RARE_TEMPERAMENTS if not rng.randrange(RARE_EVERY))
    return replace(plan, temperaments=plan.temperaments + drawn) if plan.idempotent else plan


def _with_recreated_topic(plan: Plan) -> Plan:
    """Draw the recreated topic like `_with_last_fault`, from another generator."""
    rng = random.Random(plan.seed * 79 + 23)
    if rng.randrange(LAST_FAULT_EVERY) or plan.ending != "heal" or plan.last_fault:
        return plan
    if not plan.idempotent or {"old_versions", "no_topic_ids"} & set(plan.temperaments):
        return plan
    options, cluster = dict(plan.options), dict(plan.cluster)
    options.update(delivery_timeout_ms=60_000, max_block_ms=20_000, metadata_max_age_ms=300_000)
    # The metadata contains topic ids, and Produce still names the topics.
    cluster["version_profile"] = rng.choice(("2.8", "3.9"))
    return replace(plan, options=options, cluster=cluster, last_fault=RECREATED)


def _with_last_fault(plan: Plan) -> Plan:
    """Draw a last fault from a separate generator, so that seeds without one stay the same. Options
    that would hide the fault are replaced."""
    rng = random.Random(plan.seed * 67 + 3)
    if rng.randrange(LAST_FAULT_EVERY) or plan.ending != "heal":
        return plan
    name = rng.choice(LAST_FAULTS)
    options, cluster = dict(plan.options), dict(plan.cluster)
    options["delivery_timeout_ms"] = 60_000
    if name != "refused_connections" and options["acks"] == 0:
        options["acks"] = 1  # without responses nothing is in flight
    if name == "frozen_leader":
        options.update(max_block_ms=20_000, buffer_memory=1_000_000, compression_type="none")
        cluster["brokers"] = max(2, cluster["brokers"])
    elif name == "far_broker":
        if cluster["version_profile"] == "0.11":
            return plan  # accepts only one request at a time (`_temperaments`)
        options.update(
            max_block_ms=20_000,
            request_timeout_ms=10_000,
            metadata_max_age_ms=300_000,
            max_in_flight_requests_per_connection=5,
        )
        cluster["brokers"] = max(3, cluster["brokers"])
    late_timers_s = min(plan.late_timers_s, MOST_LATE_S)
    return replace(
        plan, options=options, cluster=cluster, late_timers_s=late_timers_s, last_fault=name
    )


def _temperaments(seed: int, options: dict[str, Any], cluster: dict[str, Any]) -> tuple[str, ...]:
    """Draw temperaments from a separate generator, so that they change nothing else in a seed."""
    rng = random.Random(seed * 31 + 17)
    drawn = tuple(rng.sample(TEMPERAMENTS, rng.choice((0, 1, 1, 1, 2, 3))))
    if "slow_handshakes" in drawn:
        options["socket_connection_setup_timeout_ms"] = 500
        options["socket_connection_setup_timeout_max_ms"] = 4_000
        # Records and calls outlast a failed handshake and a successful one.
        options["delivery_timeout_ms"] = max(15_000, options["delivery_timeout_ms"])
        options["max_block_ms"] = 20_000
    if "old_versions" in drawn:
        cluster["version_profile"] = profile = rng.choice(OLD_PROFILES)
        if profile != "2.4" and options["compression_type"] == "zstd":
            options["compression_type"] = "lz4"  # zstd was added in 2.1 (KIP-110)
        if profile == "0.11":
            # Its brokers recognise only a repetition of the last batch (KAFKA-5494).
            options["max_in_flight_requests_per_connection"] = 1
    return drawn


def _options(rng: random.Random) -> dict[str, Any]:
    idempotent = rng.random() < 0.75
    request_ms = rng.choice((500, 3_000, 10_000))
    return {
        "client_id": "simulated",
        "enable_idempotence": idempotent,
        "acks": "all" if idempotent else rng.choice(("all", "all", 1, 0)),
        "max_in_flight_requests_per_connection": rng.choice(
            (1, 2, 5, 5) if idempotent else (1, 1, 2, 5)
        ),
        "retries": rng.choice((2**31 - 1, 2**31 - 1, 2**31 - 1, 2)),
        "linger_ms": rng.choice((0, 5, 100)),
        "adaptive_linger": rng.random() < 0.5,
        "batch_size": rng.choice((0, 1, 300, 2_000, 131_072)),
        "buffer_memory": rng.choice((20_000, 1_000_000)),
        "max_request_size": 15_000,
        "request_timeout_ms": request_ms,
        "delivery_timeout_ms": rng.choice((request_ms + 700, 15_000, 60_000)),
        "max_block_ms": rng.choice((1_000, 20_000)),
        "metadata_max_age_ms": rng.choice((1_000, 300_000)),
        "connections_max_idle_ms": rng.choice((2_000, 540_000)),
        "compression_type": rng.choice(("none", *CODEC_NAMES)),
        "partitioner_ignore_keys": rng.random() < 0.3,
    }


def _cluster(rng: random.Random) -> dict[str, Any]:
    return {
        "brokers": rng.choice((1, 2, 3, 3, 3, 3, 4, 5)),
        "replication_s": rng.choice((0.0, 0.0, 0.01, 0.3)),
        "version_profile": rng.choice(PROFILES),
        "failover_s": rng.choice((0.05, 1.0)),
        "controller_s": rng.choice((0.0, 0.5)),
    }
