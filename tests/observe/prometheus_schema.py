"""The messages of Prometheus' protobuf format, for Google's parser.

Source: prometheus/client_model, io/prometheus/client/metrics.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import decoder

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "string": _Field.TYPE_STRING, "double": _Field.TYPE_DOUBLE, "uint64": _Field.TYPE_UINT64,
    "uint32": _Field.TYPE_UINT32, "sint32": _Field.TYPE_SINT32, "sint64": _Field.TYPE_SINT64,
    "int32": _Field.TYPE_INT32,
}  # fmt: skip

_MESSAGES: Final = {
    "LabelPair": "1 string name, 2 string value",
    "Gauge": "1 double value",
    "Counter": "1 double value",
    "Untyped": "1 double value",
    "Quantile": "1 double quantile, 2 double value",
    "Summary": "1 uint64 sample_count, 2 double sample_sum, 3 *Quantile quantile",
    "Bucket": "1 uint64 cumulative_count, 2 double upper_bound",
    "BucketSpan": "1 sint32 offset, 2 uint32 length",
    "Histogram": (
        "1 uint64 sample_count, 2 double sample_sum, 3 *Bucket bucket, 5 sint32 schema, "
        "6 double zero_threshold, 7 uint64 zero_count, 12 *BucketSpan positive_span, "
        "13 *sint64 positive_delta"
    ),
    "Metric": (
        "1 *LabelPair label, 2 Gauge gauge, 3 Counter counter, 4 Summary summary, "
        "5 Untyped untyped, 7 Histogram histogram"
    ),
    "MetricFamily": "1 string name, 2 string help, 3 int32 type, 4 *Metric metric",
}
"""Number, type and name of each field; * marks a repeated field. The enum MetricType is read as an
int32."""


def _family_class() -> type[Any]:
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="p", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            number, kind, own = field.split()
            made = message.field.add(name=own, number=int(number))
            repeated = kind.startswith("*")
            made.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            if kind in _TYPES:
                made.type = _TYPES[kind]
            else:
                made.type, made.type_name = _Field.TYPE_MESSAGE, f".p.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.MetricFamily"))
    return found


def read_families(data: bytes) -> Iterator[Any]:
    """Yield the messages of a response. Raise AssertionError for fields that the schema above
    lacks."""
    family_class, position = _family_class(), 0
    while position < len(data):
        length, position = decoder._DecodeVarint32(data, position)
        family = family_class.FromString(data[position : position + length])
        assert family.SerializeToString(deterministic=True), "not empty"
        assert not _unknown(family), "fields that are not in the schema"
        yield family
        position += length


def _unknown(message: Any) -> bool:
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is not None:
            inner = value if field.is_repeated else [value]
            if any(map(_unknown, inner)):
                return True
    return False
