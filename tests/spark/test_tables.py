"""The seam between RecordBatches and the producer: what is told of rows that failed."""

from __future__ import annotations

import pyarrow as pa

from aiokprod.bulk import wait_settled
from aiokprod.errors import Code
from aiokprod.records import TopicPartition
from aiokprod.spark.tables import Handed, hand_over
from tests.faults.kit import scenario


@scenario(partitions=1, topic="a")
async def test_failure_is_told_with_the_topic_of_its_row(cluster, producer, history):
    cluster.create_topic("b", 1)
    cluster.fail_produce(TopicPartition("b", 0), Code.TOPIC_AUTHORIZATION_FAILED)
    table = pa.RecordBatch.from_pydict({"value": [b"1", b"2"], "topic": ["a", "b"]})
    handed = Handed()
    await hand_over(producer, None, table, handed)
    await wait_settled(handed.cores)
    where, error = handed.first_failure()
    assert where == "b-0"
    assert error.code.number == Code.TOPIC_AUTHORIZATION_FAILED
