"""The mock cluster of the confluent-kafka wheel, with topics of any number of partitions.

    python -m benchmarks.mock_host NODES

The program prints the bootstrap servers. For each line "TOPIC PARTITIONS REPLICAS" on standard
input, it creates that topic and prints "0" or an error code of librdkafka. It exits at the end of
its input.

Topics that are created automatically always have four partitions. So this module calls the mock
interface of librdkafka (rdkafka_mock.h) in the library of the wheel.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Final

_PRODUCER: Final = 0
_TEXT: Final = 512
_OK: Final = 0


def library() -> Path:
    """Return the path of librdkafka in the wheel. Raises RuntimeError if it is not found."""
    import confluent_kafka

    package = Path(confluent_kafka.__file__).parent
    folders = [package.parent / "confluent_kafka.libs", package / ".dylibs", package]
    for folder in folders:
        for found in sorted(folder.glob("librdkafka*")):
            return found
    raise RuntimeError(
        "confluent-kafka was installed without its wheel's librdkafka: the mock cluster needs it"
    )


class MockHost:
    """`nodes` brokers in a thread of librdkafka."""

    def __init__(self, nodes: int) -> None:
        self._rd = rd = ctypes.CDLL(str(library()))
        for name in ("conf_new", "new", "handle_mock_cluster"):
            getattr(rd, f"rd_kafka_{name}").restype = ctypes.c_void_p
        rd.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        text = ctypes.create_string_buffer(_TEXT)
        conf = ctypes.c_void_p(rd.rd_kafka_conf_new())
        for key, value in {"test.mock.num.brokers": nodes, "log_level": 0}.items():
            args = (key.encode(), str(value).encode(), text, ctypes.c_size_t(_TEXT))
            if rd.rd_kafka_conf_set(conf, *args) != _OK:
                raise RuntimeError(text.value.decode())
        handle = rd.rd_kafka_new(_PRODUCER, conf, text, ctypes.c_size_t(_TEXT))
        if not handle:
            raise RuntimeError(text.value.decode())
        cluster = rd.rd_kafka_handle_mock_cluster(ctypes.c_void_p(handle))
        self._cluster = ctypes.c_void_p(cluster)

    @property
    def bootstrap_servers(self) -> str:
        found: bytes = self._rd.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return found.decode()

    def create_topic(self, name: str, partitions: int, replicas: int) -> int:
        """Create a topic. Return librdkafka's error code, which is 0 on success."""
        code: int = self._rd.rd_kafka_mock_topic_create(
            self._cluster, name.encode(), partitions, replicas
        )
        return code


def main() -> None:
    host = MockHost(int(sys.argv[1]))
    print(host.bootstrap_servers, flush=True)
    for line in sys.stdin:
        name, partitions, replicas = line.split()
        print(host.create_topic(name, int(partitions), int(replicas)), flush=True)


if __name__ == "__main__":
    main()
