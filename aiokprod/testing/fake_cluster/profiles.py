"""API versions of Kafka releases. Source: `validVersions` in the message schemas of releases."""

from __future__ import annotations

from dataclasses import dataclass

from aiokprod._wire.messages import REQUESTS

Ranges = dict[int, tuple[int, int]]

PRODUCE, METADATA, FIND_COORDINATOR, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 10, 18, 22
DESCRIBE_CONFIGS = 32
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
OFFSET_FETCH, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 9, 65, 66


@dataclass(frozen=True, slots=True)
class Profile:
    """A Kafka version that the fake cluster emulates.

    Attributes:
        ranges: lowest and highest version of each API.
        strict_ledger: True if an unknown producer must start at sequence 0 (before 2.4).
        names_api_versions: True if an ApiVersions response with UNSUPPORTED_VERSION lists the
            supported versions (KIP-511, since 2.4).
        transaction_version: finalized level of transaction.version (KIP-890).
        batches_remembered: number of batches per producer and partition that are checked for
            duplicates (only one in Kafka 0.11, KAFKA-5494).
    """

    ranges: Ranges
    strict_ledger: bool = False
    names_api_versions: bool = True
    transaction_version: int = 0
    batches_remembered: int = 5


def _served(**highest: int) -> Ranges:
    names = {
        "produce": (PRODUCE, 0),
        "metadata": (METADATA, 0),
        "find_coordinator": (FIND_COORDINATOR, 0),
        "api_versions": (API_VERSIONS, 0),
        "init_producer_id": (INIT_PRODUCER_ID, 0),
        "add_partitions": (ADD_PARTITIONS_TO_TXN, 0),
        "add_offsets": (ADD_OFFSETS_TO_TXN, 0),
        "end_txn": (END_TXN, 0),
        "commit_offsets": (TXN_OFFSET_COMMIT, 0),
        "describe_configs": (DESCRIBE_CONFIGS, 0),
        "fetch_offsets": (OFFSET_FETCH, 1),
        "describe": (DESCRIBE_TRANSACTIONS, 0),
        "list": (LIST_TRANSACTIONS, 0),
    }
    ranges = {names[name][0]: (names[name][1], high) for name, high in highest.items()}
    return dict(sorted(ranges.items()))


PROFILES: dict[str, Profile] = {
    "0.11": Profile(
        _served(
            produce=3,
            metadata=4,
            find_coordinator=1,
            api_versions=1,
            init_producer_id=0,
            add_partitions=0,
            add_offsets=0,
            end_txn=0,
            commit_offsets=0,
            fetch_offsets=3,
        ),
        strict_ledger=True,
        names_api_versions=False,
        batches_remembered=1,
    ),
    "1.0": Profile(
        _served(
            produce=5,
            metadata=5,
            find_coordinator=1,
            api_versions=1,
            init_producer_id=0,
            add_partitions=0,
            add_offsets=0,
            end_txn=0,
            commit_offsets=0,
            describe_configs=1,
            fetch_offsets=3,
        ),
        strict_ledger=True,
        names_api_versions=False,
    ),
    "2.1": Profile(
        _served(
            produce=7,
            metadata=7,
            find_coordinator=2,
            api_versions=2,
            init_producer_id=1,
            add_partitions=1,
            add_offsets=1,
            end_txn=1,
            commit_offsets=2,
            describe_configs=2,
            fetch_offsets=5,
        ),
        strict_ledger=True,
        names_api_versions=False,
    ),
    "2.4": Profile(
        _served(
            produce=8,
            metadata=9,
            find_coordinator=3,
            api_versions=3,
            init_producer_id=2,
            add_partitions=1,
            add_offsets=1,
            end_txn=1,
            commit_offsets=2,
            describe_configs=2,
            fetch_offsets=6,
        )
    ),
    "2.8": Profile(
        _served(
            produce=9,
            metadata=11,
            find_coordinator=3,
            api_versions=3,
            init_producer_id=4,
            add_partitions=3,
            add_offsets=3,
            end_txn=3,
            commit_offsets=3,
            describe_configs=4,
            fetch_offsets=7,
        )
    ),
    "3.9": Profile(
        _served(
            produce=11,
            metadata=12,
            find_coordinator=6,
            api_versions=4,
            init_producer_id=5,
            add_partitions=5,
            add_offsets=4,
            end_txn=4,
            commit_offsets=4,
            describe_configs=4,
            fetch_offsets=9,
            describe=0,
            list=1,
        )
    ),
    "4.0": Profile(
        _served(
            produce=12,
            metadata=13,
            find_coordinator=6,
            api_versions=4,
            init_producer_id=5,
            add_partitions=5,
            add_offsets=4,
            end_txn=5,
            commit_offsets=5,
            describe_configs=4,
            fetch_offsets=9,
            describe=0,
            list=1,
        ),
        transaction_version=2,
    ),
    "4.3": Profile(
        _served(
            produce=13,
            metadata=13,
            find_coordinator=6,
            api_versions=4,
            init_producer_id=5,
            add_partitions=5,
            add_offsets=4,
            end_txn=5,
            commit_offsets=5,
            describe_configs=4,
            fetch_offsets=10,
            describe=0,
            list=2,
        ),
        transaction_version=2,
    ),
}
NEWEST = "4.3"


def profile_named(name: str) -> Profile:
    """Return the profile of a Kafka version. Raises ValueError if there is none."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"no profile {name!r}; there are {', '.join(PROFILES)}") from None


def decodable(ranges: Ranges) -> Ranges:
    """Return those versions in `ranges` that the wire layer can decode. Brokers offer more."""
    found: Ranges = {}
    for api_key, (low, high) in ranges.items():
        message = REQUESTS.get(api_key)
        if message is None:
            continue
        found[api_key] = max(low, message.min_version), min(high, message.max_version)
    return found
