"""Admin calls for tests: topics, leaders, end offsets.

The calls use the admin client of confluent-kafka (extra `test`), so that an independent client
checks the effects of aiokprod. They are synchronous, and each has a time limit.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

CALL_TIMEOUT: Final = 10.0
"""Timeout of one attempt, s."""
RETRY_FOR: Final = 45.0
"""Seconds for which a call that fails with a transient error is retried."""

_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_TOPIC_ALREADY_EXISTS: Final = 36
_INVALID_PARTITIONS: Final = 37
_LEADER_MOVES: Final = frozenset({5, 6, 74, 75, 78})
"""Codes during a leader election: LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER,
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_NOT_AVAILABLE. librdkafka's admin client does not
mark errors of single partitions as retriable."""


class AdminError(RuntimeError):
    """An admin call failed."""


class _Unavailable(Exception):
    """A part of the response is missing, because one broker did not respond."""


class ClusterAdmin:
    """Admin calls to one cluster. Brokers may stop and start between calls."""

    def __init__(self, bootstrap_servers: str) -> None:
        try:
            from confluent_kafka.admin import AdminClient
        except ImportError as error:
            raise AdminError(
                "KafkaCluster needs confluent-kafka for admin calls, which is not installed: "
                "install aiokprod[test]"
            ) from error
        self._client = AdminClient(
            {
                "bootstrap.servers": bootstrap_servers,
                "socket.timeout.ms": int(CALL_TIMEOUT * 1000),
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                "error_cb": _ignore,
            }
        )

    def broker_ids(self, timeout: float = 2.0) -> set[int]:
        """Returns the ids of the registered brokers that are not fenced. The set is empty if no
        broker responds."""
        from confluent_kafka import KafkaException

        try:
            return set(self._client.list_topics(timeout=timeout).brokers)
        except KafkaException:
            return set()

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Returns the node id of the leader, or None for no leader or an unknown partition."""
        found = self._partitions(topic).get(partition)
        return None if found is None or found.leader < 0 else int(found.leader)

    def partition_count(self, topic: str) -> int:
        return len(self._partitions(topic))

    def _partitions(self, topic: str) -> Mapping[int, Any]:
        metadata = _patiently(lambda: self._client.list_topics(timeout=CALL_TIMEOUT))
        entry = metadata.topics.get(topic) if metadata is not None else None
        return {} if entry is None else dict(entry.partitions)

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a topic and waits until every partition has a leader."""
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config=dict(configs or {}),
        )
        _patiently(
            lambda: self._result(self._client.create_topics([topic]), name),
            done_by_earlier_try=_TOPIC_ALREADY_EXISTS,
        )
        self._wait_for(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and waits until the brokers no longer list it."""
        _patiently(
            lambda: self._result(self._client.delete_topics([name]), name),
            done_by_earlier_try=_UNKNOWN_TOPIC_OR_PARTITION,
        )
        _until(lambda: not self._partitions(name), f"topic {name} to vanish")

    def create_partitions(self, name: str, total: int) -> None:
        """Increases the number of partitions to `total` and waits for their leaders."""
        from confluent_kafka.admin import NewPartitions

        _patiently(
            lambda: self._result(
                self._client.create_partitions([NewPartitions(name, total)]), name
            ),
            done_by_earlier_try=_INVALID_PARTITIONS,
        )
        self._wait_for(name, total)

    def _wait_for(self, name: str, partitions: int) -> None:
        def complete() -> bool:
            found = self._partitions(name)
            return len(found) == partitions and all(p.leader >= 0 for p in found.values())

        _until(complete, f"{partitions} partitions of {name} to have leaders")

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Returns the offset after the last record (read_uncommitted) by partition. Waits for all
        leaders. Raises AdminError if a leader cannot be reached for `RETRY_FOR` seconds."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in self._partitions(topic)}

        def ask() -> dict[int, int]:
            answers = self._client.list_offsets(wanted, request_timeout=CALL_TIMEOUT)
            found = {
                tp.partition: int(future.result(CALL_TIMEOUT).offset)
                for tp, future in answers.items()
            }
            missing = sorted(partition for partition, offset in found.items() if offset < 0)
            if missing:  # librdkafka returns OFFSET_INVALID (negative) instead of an error
                raise _Unavailable(
                    f"no end offset of {topic}, partitions {missing}: no leader could be reached "
                    f"for {RETRY_FOR:.0f} s"
                )
            return found

        # A broker may list a topic before the leader of its partitions knows the topic.
        return _patiently(ask, passing=_LEADER_MOVES | {_UNKNOWN_TOPIC_OR_PARTITION}) or {}

    @staticmethod
    def _result(futures: Mapping[str, Any], name: str) -> bool:
        futures[name].result(CALL_TIMEOUT)
        return True


def downgrade_feature(bootstrap_servers: str, feature: str, level: int) -> None:
    """Finalises a lower level of a cluster feature, like `kafka-features.sh downgrade`.

    The call uses kafka-python (extra `test`), because confluent-kafka does not support it. Brokers
    may report the new level with a delay.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python warns even at import
        try:
            from kafka.admin import KafkaAdminClient, UpdateFeatureType
        except ImportError as error:
            raise AdminError(
                "lowering a feature needs kafka-python, which is not installed: "
                "install aiokprod[test]"
            ) from error
        admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
        try:
            update = {feature: (UpdateFeatureType.SAFE_DOWNGRADE, level)}
            answer = admin.update_features(update)
        finally:
            admin.close()
    if answer != {feature: "OK"}:
        raise AdminError(f"{feature} was not lowered to {level}: {answer}")


def _ignore(error: object) -> None:
    """Drops librdkafka's error reports, because these tests stop brokers on purpose."""


def _patiently(
    call: Callable[[], T],
    done_by_earlier_try: int | None = None,
    passing: frozenset[int] = frozenset(),
) -> T | None:
    """Retries a call while brokers start, while a part of the response is missing, and after the
    error codes `passing`. Raises any other error immediately.

    An attempt whose response was lost may have succeeded. A later attempt then fails with the code
    `done_by_earlier_try`, which counts as success. The result is then None.
    """
    from confluent_kafka import KafkaException

    give_up = time.monotonic() + RETRY_FOR
    tries = 0
    while True:
        tries += 1
        try:
            return call()
        except KafkaException as error:
            code = error.args[0].code()
            if tries > 1 and code == done_by_earlier_try:
                return None
            again = error.args[0].retriable() or code < 0 or code in passing
            if not again or time.monotonic() > give_up:
                raise AdminError(str(error)) from error
        except TimeoutError as error:
            if time.monotonic() > give_up:
                raise AdminError("the brokers did not respond to an admin call") from error
        except _Unavailable as error:
            if time.monotonic() > give_up:
                raise AdminError(str(error)) from error
        time.sleep(0.2)


def _until(done: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + RETRY_FOR
    while not done():
        if time.monotonic() > give_up:
            raise AdminError(f"waited {RETRY_FOR:.0f} s for {what}")
        time.sleep(0.1)
