"""Testing kit: virtual time, an in-memory network, a scripted Kafka cluster, a recording producer,
assertions on records, and real brokers.

The names exported here need no further packages. Real brokers are in `kafka_cluster`.
"""

from aiokprod._errors import Code, ErrorCode
from aiokprod.testing.api import Api
from aiokprod.testing.expectations import Expectations, expecting
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.recording_producer import RecordingProducer
from aiokprod.testing.virtual import VirtualLoop, run

__all__ = [
    "Api",
    "Code",
    "ErrorCode",
    "Expectations",
    "FakeCluster",
    "MemoryNetwork",
    "RecordingProducer",
    "VirtualLoop",
    "expecting",
    "run",
]
