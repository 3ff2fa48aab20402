"""The contents of transactional requests in each version, and the error codes read from
responses."""

from __future__ import annotations

import pytest

from aiokprod import GroupMetadata, UnsupportedVersion
from aiokprod._consumer_groups import Offset
from aiokprod._engine.identity import transaction_requests as requests
from aiokprod._engine.identity.coordinators import VersionedRequest
from aiokprod._wire.messages.end_txn import EndTxnResponse
from aiokprod._wire.messages.init_producer_id import InitProducerIdResponse
from aiokprod.errors import Code
from aiokprod.records import TopicPartition


@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_first_init_has_no_producer_id_in_any_version(version: int) -> None:
    made = requests.init("x", 60_000, -1, -1)(version)
    assert (made.transactional_id, made.transaction_timeout_ms) == ("x", 60_000)
    assert (made.producer_id, made.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("producer_id", [0, 7])
def test_epoch_bump_names_its_producer_id_and_needs_version_3(producer_id: int) -> None:
    request = requests.init("x", 60_000, producer_id, 2)
    made = request(3)
    assert (made.producer_id, made.producer_epoch) == (producer_id, 2)
    with pytest.raises(UnsupportedVersion, match=r"before Kafka 2\.5"):
        request(2)


def offsets_request(*, tv2: bool) -> VersionedRequest:
    offsets = {
        TopicPartition("a", 1): Offset(5, 3, "note"),
        TopicPartition("b", 0): Offset(6),
        TopicPartition("a", 0): Offset(7),
    }
    return requests.commit_offsets("x", 7, 2, offsets, GroupMetadata("g", 4, "m", "i"), tv2=tv2)


def test_offsets_are_grouped_by_topic_with_the_member_they_belong_to() -> None:
    made = offsets_request(tv2=False)(3)
    assert (made.transactional_id, made.producer_id, made.producer_epoch) == ("x", 7, 2)
    assert (made.group_id, made.generation_id, made.member_id) == ("g", 4, "m")
    assert made.group_instance_id == "i"
    assert [
        (topic.name, [(one.partition_index, one.committed_offset) for one in topic.partitions])
        for topic in made.topics
    ] == [("a", [(1, 5), (0, 7)]), ("b", [(0, 6)])]
    [noted, plain] = made.topics[0].partitions
    assert (noted.committed_leader_epoch, noted.committed_metadata) == (3, "note")
    assert (plain.committed_leader_epoch, plain.committed_metadata) == (-1, "")


def test_offsets_of_the_second_protocol_need_version_5() -> None:
    request = offsets_request(tv2=True)
    assert request(5).group_id == "g"
    with pytest.raises(UnsupportedVersion, match="TxnOffsetCommit v5 is missing"):
        request(4)


def test_init_answer_without_error_and_without_id_counts_as_none() -> None:
    empty = InitProducerIdResponse(error_code=0, producer_id=-1)
    assert requests.code_of(empty) == Code.NETWORK_EXCEPTION
    assert requests.code_of(InitProducerIdResponse(error_code=0, producer_id=0)) == 0
    refused = InitProducerIdResponse(error_code=int(Code.NOT_COORDINATOR), producer_id=-1)
    assert requests.code_of(refused) == Code.NOT_COORDINATOR
    assert requests.code_of(EndTxnResponse(error_code=0)) == 0
