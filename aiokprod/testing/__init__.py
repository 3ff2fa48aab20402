"""Testing kit: virtual time, an in-memory network, a scripted Kafka cluster, real brokers.

The names exported here have no further dependencies. Real brokers are in `kafka_cluster`.
"""

from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import VirtualLoop, run

__all__ = ["FakeCluster", "MemoryNetwork", "VirtualLoop", "run"]
