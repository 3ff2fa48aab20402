"""Maps methods of other clients' producers to their equivalents in `Producer`."""

from __future__ import annotations

from typing import Final

_SEND: Final = "await producer.send(...)"
_SUBMIT: Final = "await producer.submit(..., on_delivery=...), which returns a Delivery"
_START: Final = "await producer.start(), or `async with`"
_NO_POLL: Final = "no call: deliveries are reported on the event loop"

FOREIGN_METHODS: Final[dict[str, str]] = {
    # aiokafka
    "send_and_wait": _SEND,
    "stop": "await producer.close(), or `async with`",
    "create_batch": "await producer.send_many(...)",
    "send_batch": "await producer.send_many(...)",
    "client": "producer.partitions_for(topic) and producer.health()",
    # kafka-python
    "bootstrap_connected": "producer.health()",
    # confluent-kafka
    "produce": _SUBMIT,
    "produce_batch": "await producer.send_many(...)",
    "poll": _NO_POLL,
    "purge": "await producer.close(0)",
    "list_topics": "await producer.partitions_for(topic)",
    "init_transactions": _START,
    "set_sasl_credentials": "the setting sasl_credentials, which can be replaced at run time",
    # Java
    "beginTransaction": "producer.transaction() or begin_transaction()",
    "commitTransaction": "producer.transaction() or commit_transaction()",
    "abortTransaction": "producer.transaction() or abort_transaction()",
    "initTransactions": _START,
    "sendOffsetsToTransaction": "await producer.send_offsets_to_transaction(...)",
    "partitionsFor": "await producer.partitions_for(topic)",
    "clientInstanceId": "producer.client_id",
    # asyncio, and names similar to those of `Producer`
    "aclose": "await producer.close(), or `async with`",
    "send_sync": "aiokprod.Blocking, for code without an event loop",
    "connect": _START,
    "disconnect": "await producer.close(), or `async with`",
}


def no_such_attribute(name: str) -> str:
    """Return the text of the AttributeError for a missing attribute of `Producer`."""
    text = f"'Producer' object has no attribute {name!r}"
    ours = FOREIGN_METHODS.get(name)
    return text if ours is None else f"{text}; use {ours}"
