"""Serializers with schemas, and CloudEvents; docs/serdes.md has examples.

Avro and the validation of JSON Schema need the extra `registry`, and CloudEvents need the extra
`cloudevents`. Packages of extras are imported when an object that needs them is created. `aiokprod`
itself imports none of these modules.
"""

from aiokprod.serdes._schema_serializer import (
    Framing,
    SubjectName,
    record_name,
    topic_name,
    topic_record_name,
)
from aiokprod.serdes.avro import AvroSerializer
from aiokprod.serdes.cloud_events import event_record, send_event
from aiokprod.serdes.confluent import ConfluentSerializer
from aiokprod.serdes.json_schema import JsonSchemaSerializer
from aiokprod.serdes.models import MsgspecSerializer, PydanticSerializer
from aiokprod.serdes.protobuf import ProtobufSerializer
from aiokprod.serdes.registry import (
    RegisteredSchema,
    Registry,
    RegistryAuth,
    RegistryError,
    RegistryRequest,
    RegistryResponse,
    RegistryTransport,
    SchemaReference,
)

__all__ = [
    "AvroSerializer",
    "ConfluentSerializer",
    "Framing",
    "JsonSchemaSerializer",
    "MsgspecSerializer",
    "ProtobufSerializer",
    "PydanticSerializer",
    "RegisteredSchema",
    "Registry",
    "RegistryAuth",
    "RegistryError",
    "RegistryRequest",
    "RegistryResponse",
    "RegistryTransport",
    "SchemaReference",
    "SubjectName",
    "event_record",
    "record_name",
    "send_event",
    "topic_name",
    "topic_record_name",
]
