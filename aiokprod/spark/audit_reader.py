"""`format("aiokprod-audit")`: reads records with their producer ids, epochs and sequences."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pyspark.sql.datasource import DataSourceReader, InputPartition

from aiokprod import __version__
from aiokprod._client.cluster_client import ClusterClient
from aiokprod._redaction import redacted as without_frames
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError
from aiokprod.records import validate_topic
from aiokprod.spark.audit_fetch import EARLIEST, LATEST, RangeReader, list_offsets
from aiokprod.spark.context import check_version
from aiokprod.spark.options import (
    KAFKA_PREFIX,
    SealedOptions,
    SinkOptions,
    parse_choice,
    parse_count,
    plain_name,
    refuse_shown_key,
)
from aiokprod.spark.traceback_redaction import redacted
from aiokprod.spark.worker_loop import loop_thread

SCHEMA: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, producerId bigint, producerEpoch int, "
    "sequence int, attributes int"
)
_PLAN_SECONDS: Final = 120.0
_METADATA_SECONDS: Final = 30.0
_RECEIVE_MAX: Final = 256 * 1024 * 1024
_OPTIONS: Final = ("topic", "isolation", "values", "headers", "offsetsPerTask")
_ISOLATION: Final = ("read_committed", "read_uncommitted")
_FLAG: Final = ("true", "false")


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The checked options of one read.

    Attributes:
        topics: names of the topics, at least one.
        committed: leave out aborted transactions, and stop before the first open transaction.
        values, headers: read these columns. If False, they are null.
        offsets_per_task: maximum number of offsets that one task reads.
    """

    kafka: SealedOptions
    topics: tuple[str, ...]
    committed: bool = True
    values: bool = True
    headers: bool = True
    offsets_per_task: int = 5_000_000

    @classmethod
    @without_frames(ConfigError)
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options that Spark passes.

        Raises:
            ConfigError: an option is unknown, missing or wrong.
        """
        given = {key.lower(): value for key, value in options.items()}
        kafka = {k: v for k, v in given.items() if plain_name(k).startswith(KAFKA_PREFIX)}
        refuse_shown_key(kafka, "what it reads")
        own = {key: value for key, value in given.items() if key not in kafka}
        unknown = set(own) - {name.lower() for name in _OPTIONS}
        if unknown:
            raise ConfigError(
                f"option {sorted(unknown)[0]!r} is not one of aiokprod-audit: use "
                f"{', '.join(_OPTIONS)} and kafka.<name>"
            )
        names = [name for name in own.get("topic", "").split(",") if name.strip()]
        if not names:
            raise ConfigError("option 'topic' is missing: name one topic, or several with commas")
        sink = SinkOptions.parse(kafka)  # checks the connection settings
        return cls(
            kafka=sink.kafka,
            topics=tuple(validate_topic(name.strip()) for name in names),
            committed=parse_choice("isolation", own.get("isolation", _ISOLATION[0]), _ISOLATION)
            == _ISOLATION[0],
            values=parse_choice("values", own.get("values", "true"), _FLAG) == "true",
            headers=parse_choice("headers", own.get("headers", "true"), _FLAG) == "true",
            offsets_per_task=parse_count("offsetsPerTask", own.get("offsetspertask", "5000000"), 1),
        )

    @without_frames(ConfigError)
    def config(self) -> ProducerConfig:
        """Return the configuration of the connections."""
        settings = dict(self.kafka)
        settings.setdefault("receive.max.bytes", str(_RECEIVE_MAX))
        return SinkOptions(kafka=SealedOptions(settings)).producer_config()


@dataclass(frozen=True)
class AuditRange(InputPartition):
    """The input of one Spark task: the offsets `start` to `end` - 1 of one partition."""

    topic: str
    partition: int
    start: int
    end: int


class AuditReader(DataSourceReader):
    """Plans the tasks on the driver, and reads the records in the tasks."""

    def __init__(self, options: SealedOptions) -> None:
        """`options` must have been checked by `AuditOptions.parse`."""
        self._options = options
        self._version = __version__

    def partitions(self) -> list[AuditRange]:
        """Return a task per `offsetsPerTask` offsets of each partition, up to its current end."""
        with redacted(self._options):
            options = AuditOptions.parse(self._options)
            return loop_thread().run(_plan(options), _PLAN_SECONDS)

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield RecordBatches of `SCHEMA`. The next fetch is sent while a batch is processed."""
        if not isinstance(partition, AuditRange):
            return  # the topic is empty: Spark runs one task with another partition object
        with redacted(self._options):
            check_version(self._version)
            yield from _records(AuditOptions.parse(self._options), partition)


def _records(options: AuditOptions, part: AuditRange) -> Iterator[Any]:
    thread = loop_thread()
    client = thread.run(_open(options))
    reader = RangeReader(
        client, part.topic, part.partition, part.start, part.end,
        committed=options.committed, values=options.values, headers=options.headers,
    )  # fmt: skip
    coming = thread.start(reader.read())
    try:
        while (columns := coming.result()) is not None:
            coming = thread.start(reader.read())
            yield record_batch(part.topic, part.partition, columns)
    finally:
        coming.cancel()  # if the reader was closed early
        thread.run(client.close(1.0))


async def _open(options: AuditOptions) -> ClusterClient:
    return ClusterClient(options.config())


async def _plan(options: AuditOptions) -> list[AuditRange]:
    client = await _open(options)
    try:
        return await _ranges(client, options)
    finally:
        await client.close(1.0)


async def _ranges(client: ClusterClient, options: AuditOptions) -> list[AuditRange]:
    """Return the tasks, ordered by topic (as in the options), partition and offset."""
    deadline = client.loop.time() + _METADATA_SECONDS
    infos = await asyncio.gather(*(client.topic(topic, deadline) for topic in options.topics))
    partitions = [
        (topic, number)
        for topic, info in zip(options.topics, infos, strict=True)
        for number in sorted(one.partition for one in info.partitions)
    ]
    starts = await list_offsets(client, partitions, timestamp=EARLIEST, committed=options.committed)
    ends = await list_offsets(client, partitions, timestamp=LATEST, committed=options.committed)
    return [
        AuditRange(*one, first, min(ends[one], first + options.offsets_per_task))
        for one in partitions
        for first in range(starts[one], ends[one], options.offsets_per_task)
    ]


def record_batch(topic: str, partition: int, columns: dict[str, Any]) -> Any:
    """Convert columns of `RecordColumns.take` to a pyarrow RecordBatch of `SCHEMA`."""
    import pyarrow as pa

    count = columns["count"]

    def fixed(name: str, data_type: Any) -> Any:
        return pa.Array.from_buffers(data_type, count, [None, pa.py_buffer(columns[name])])

    millis = fixed("timestamp", pa.timestamp("ms", tz="UTC"))
    headers = columns.get("headers")
    arrays = {
        "topic": pa.repeat(topic, count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": fixed("offset", pa.int64()),
        "timestamp": millis.cast(pa.timestamp("us", tz="UTC")),
        "key": _binary(columns["key"], pa.binary()),
        "value": _binary(columns["value"], pa.binary()) if "value" in columns
        else pa.nulls(count, pa.binary()),
        "headers": pa.nulls(count, _headers_type(pa)) if headers is None
        else _headers(pa, count, headers),
        "producerId": fixed("producerId", pa.int64()),
        "producerEpoch": fixed("producerEpoch", pa.int32()),
        "sequence": fixed("sequence", pa.int32()),
        "attributes": fixed("attributes", pa.int32()),
    }  # fmt: skip
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _binary(column: tuple[bytes, bytes, bytes, int], data_type: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    valid, offsets, data, nulls = column
    bitmap = None
    if nulls:
        bits = np.packbits(np.frombuffer(valid, np.uint8), bitorder="little")
        bitmap = pa.py_buffer(bits.tobytes())
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(data_type, len(valid), buffers, nulls)


def _headers_type(pa: Any) -> Any:
    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _headers(pa: Any, count: int, column: tuple[Any, Any, Any]) -> Any:
    offsets, keys, values = column
    inner = pa.StructArray.from_arrays(
        [_binary(keys, pa.string()), _binary(values, pa.binary())], names=["key", "value"]
    )
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_headers_type(pa), count, buffers, 0, children=[inner])
