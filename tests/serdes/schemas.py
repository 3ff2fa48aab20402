"""Schemas of the tests, and Protobuf messages that are defined without `protoc`."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

USER: Final = {
    "type": "record",
    "name": "User",
    "namespace": "example",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": ["null", "int"]}],
}
USER_JSON: Final = {
    "title": "User",
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "score": {"type": "number"},
        "extra": {"type": "object"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
BOB: Final = {"name": "bob", "age": 3}

Field = descriptor_pb2.FieldDescriptorProto


def _file(
    name: str, imports: list[str], messages: list[descriptor_pb2.DescriptorProto], syntax: str
) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(
        name=name, package="example", dependency=imports, message_type=messages, syntax=syntax
    )


def _message(name: str, *fields: tuple[Any, ...], **more: Any) -> descriptor_pb2.DescriptorProto:
    """Return the descriptor of a message. The fields are (name, type, label, type name)."""
    found = [
        Field(name=f[0], number=number, type=f[1], label=f[2], type_name=f[3] if f[3:] else None)
        for number, f in enumerate(fields, 1)
    ]
    return descriptor_pb2.DescriptorProto(name=name, field=found, **more)


_ONE, _MANY, _NEEDED = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED, Field.LABEL_REQUIRED
_POOL: Final = descriptor_pool.DescriptorPool()
_FILES: Final = [
    _file("example/common.proto", [], [_message("Place", ("town", Field.TYPE_STRING, _ONE))],
          "proto3"),
    _file(
        "example/user.proto",
        ["example/common.proto"],
        [
            _message(
                "User",
                ("name", Field.TYPE_STRING, _ONE),
                ("age", Field.TYPE_SINT32, _ONE),
                ("score", Field.TYPE_DOUBLE, _ONE),
                ("photo", Field.TYPE_BYTES, _ONE),
                ("tags", Field.TYPE_STRING, _MANY),
                ("numbers", Field.TYPE_INT64, _MANY),
                ("home", Field.TYPE_MESSAGE, _ONE, ".example.Place"),
                ("points", Field.TYPE_MESSAGE, _MANY, ".example.User.PointsEntry"),
                nested_type=[
                    _message(
                        "PointsEntry",
                        ("key", Field.TYPE_STRING, _ONE),
                        ("value", Field.TYPE_INT32, _ONE),
                        options=descriptor_pb2.MessageOptions(map_entry=True),
                    )
                ],
            ),
            _message(
                "Envelope",
                ("note", Field.TYPE_STRING, _ONE),
                nested_type=[
                    _message("Seal", ("x", Field.TYPE_INT32, _ONE)),
                    _message("Stamp", ("x", Field.TYPE_INT32, _ONE)),
                ],
            ),
        ],
        "proto3",
    ),
    _file("example/strict.proto", [], [_message("Strict", ("number", Field.TYPE_INT32, _NEEDED))],
          "proto2"),
    _file("example/many.proto", [], [_message(f"Many{number}") for number in range(65)], "proto3"),
]  # fmt: skip
for _one in _FILES:
    _POOL.Add(_one)


def message_class(name: str) -> Any:
    """Return the generated class of a message of the package."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"example.{name}"))


User: Final = message_class("User")
Place: Final = message_class("Place")
Envelope: Final = message_class("Envelope")
Stamp: Final = message_class("Envelope.Stamp")
Strict: Final = message_class("Strict")
Many64: Final = message_class("Many64")
"""Its message index takes two bytes."""
User.__module__ = __name__  # as `protoc` sets it, for `pickle`
