"""Wrong and correct usages of the public API, for type checkers. The code is never run.

mypy and pyright must report each line with the comment ``# wrong``, and no other line.
"""

# pyright: standard
import json

from aiokprod import (
    IntSerializer,
    JsonSerializer,
    Producer,
    ProducerConfig,
    ProducerRecord,
    ProducerSettings,
    StringSerializer,
    TopicProfile,
)

B = "localhost:9092"


def settings() -> None:
    Producer(bootstrap_servers=B, linger_ms="5")  # wrong
    Producer(bootstrap_servers=B, linger_ms=0.5)  # wrong
    Producer(bootstrap_servers=B, compresion_type="lz4")  # wrong
    Producer(bootstrap_servers=B, compression_type="brotli")  # wrong
    Producer(bootstrap_servers=B, acks="some")  # wrong
    Producer(bootstrap_servers=B, acks=2)  # wrong
    Producer(bootstrap_servers=9092)  # wrong
    Producer()  # wrong
    Producer(B)  # wrong
    Producer(config=ProducerConfig(bootstrap_servers=B))  # wrong
    Producer(bootstrap_servers=B, loop=None)  # wrong
    Producer(bootstrap_servers=B, enable_idempotence="yes")  # wrong
    Producer(bootstrap_servers=B, security_protocol="TLS")  # wrong
    Producer(bootstrap_servers=B, topic_profiles={"a": 5})  # wrong
    ProducerConfig(bootstrap_servers=B, linger_ms="5")  # wrong
    Producer(bootstrap_servers=B)
    Producer(bootstrap_servers=[B], acks="all", linger_ms=5, compression_type="lz4")
    Producer(ProducerConfig(bootstrap_servers=B), value_serializer=JsonSerializer())
    Producer(bootstrap_servers=B, sasl_username="u", sasl_password="p", client_id=None)
    Producer(bootstrap_servers=B, topic_profiles={"a": TopicProfile(linger_ms=5)})
    service: ProducerSettings = {"max_block_ms": 2_000, "acks": "all"}
    Producer(bootstrap_servers=B, **service)
    Producer(bootstrap_servers=B, value_serializer=JsonSerializer(), **service)
    misspelt: ProducerSettings = {"linger": 5}  # wrong
    Producer(bootstrap_servers=B, **misspelt)


def serializers() -> None:
    Producer(bootstrap_servers=B, value_serializer=json.dumps)  # wrong
    Producer(bootstrap_servers=B, key_serializer=StringSerializer)  # wrong
    Producer(bootstrap_servers=B, value_serializer="json")  # wrong
    Producer(bootstrap_servers=B, value_serializer=5)  # wrong
    Producer(bootstrap_servers=B, value_serializer=str.encode)
    Producer(bootstrap_servers=B, value_serializer=JsonSerializer())
    Producer(bootstrap_servers=B, key_serializer=IntSerializer(4))


async def encoded(data: dict[str, int]) -> bytes:
    return json.dumps(data).encode()


def to_json(data: dict[str, int]) -> bytes:
    return json.dumps(data).encode()


async def calls() -> None:
    producer = Producer(bootstrap_servers=B)
    producer.send("t", b"v")  # wrong
    producer.submit("t", b"v")  # wrong
    producer.close()  # wrong
    producer.send_many("t", [b"v"])  # wrong
    await producer.send(b"t", b"v")  # wrong
    await producer.send("t", "v")  # wrong
    await producer.send("t", b"v", key="k")  # wrong
    await producer.send("t", b"v", timeout="5")  # wrong
    await producer.send("t", b"v", headers=[("a", "b")])  # wrong
    await producer.send("t", b"v", b"k")  # wrong
    await producer.send("t", b"v", partition="0")  # wrong
    await producer.send_many("t", ["v"])  # wrong
    producer.send_and_wait("t", b"v")  # wrong
    await producer.start(topics=["t"])  # wrong
    producer.metrics(by="topic")  # wrong
    await producer.send("t", b"v", key=b"k", headers=[("a", b"b"), ("c", None)], timeout=5)
    delivery = await producer.submit("t", None)
    metadata = await delivery
    assert metadata.offset is not None
    result = await producer.send_many([ProducerRecord("t", b"v")])
    result.raise_for_errors()
    typed = Producer(
        bootstrap_servers=B, key_serializer=StringSerializer(), value_serializer=to_json
    )
    await typed.send("t", {"a": 1}, key="k")
    await typed.send("t", {"a": "1"}, key="k")  # wrong
    await typed.send("t", {"a": 1}, key=b"k")  # wrong
    late = Producer(bootstrap_servers=B, value_serializer=encoded)
    await late.send("t", {"a": 1})
    await late.send("t", 5)  # wrong
    async with producer.transaction() as transaction:
        assert transaction is not None
    async with typed:
        await typed.flush(1.5)
