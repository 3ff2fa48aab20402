"""A scripted Kafka cluster in memory. See `cluster.FakeCluster`."""

from aiokprod.testing.fake_cluster.cluster import FakeCluster, Refusal, RequestNote
from aiokprod.testing.fake_cluster.control import (
    ProduceFault,
    Reaction,
    answer,
    answer_late,
    close,
    cut,
    delay,
    edit,
    edit_frame,
    garbage,
    lose_answer,
    lose_request,
    refuse,
)
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.log import StoredRecord
from aiokprod.testing.fake_cluster.tcp import serve_tcp
from aiokprod.testing.fake_cluster.topology import TopicConfig

__all__ = [
    "FakeCluster",
    "ProduceFault",
    "Reaction",
    "Refusal",
    "Request",
    "RequestNote",
    "StoredRecord",
    "TopicConfig",
    "answer",
    "answer_late",
    "close",
    "cut",
    "delay",
    "edit",
    "edit_frame",
    "garbage",
    "lose_answer",
    "lose_request",
    "refuse",
    "serve_tcp",
]
