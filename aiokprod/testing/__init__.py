"""Testing kit: virtual time, a network in memory, a scripted Kafka cluster, real brokers.

The names here need nothing but the package itself. Real brokers are in `kafka_cluster`.
"""

from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import VirtualLoop, run

__all__ = ["FakeCluster", "MemoryNetwork", "VirtualLoop", "run"]
