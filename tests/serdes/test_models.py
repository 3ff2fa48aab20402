from __future__ import annotations

import sys
from typing import Any

import msgspec
import pydantic
import pytest

from aiokprod import ConfigError
from aiokprod.serdes import AvroSerializer, MsgspecSerializer, PydanticSerializer, Registry
from aiokprod.serializers import SchemaMismatch, WrongType, adapt


class Created(msgspec.Struct, tag="created"):
    name: str
    age: int


class Deleted(msgspec.Struct, tag="deleted"):
    name: str


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(default=0, alias="years")


class Employee(Person):
    room: str


class Account(pydantic.BaseModel):
    owner: Any

    @pydantic.field_validator("owner")
    @classmethod
    def _checked(cls, owner: Any) -> Any:
        if owner == "canary":
            raise LookupError(owner)
        return owner


def bytes_of(serializer: Any, data: Any) -> Any:
    return serializer.serialize("t", [], data)


def test_msgspec_encodes_the_type_and_converts_dicts() -> None:
    serializer = MsgspecSerializer(Created | Deleted)
    expected = b'{"type":"created","name":"bob","age":3}'
    assert bytes_of(serializer, Created("bob", 3)) == expected
    assert bytes_of(serializer, {"type": "created", "age": 3, "name": "bob"}) == expected
    packed = MsgspecSerializer(Deleted, format="msgpack")
    assert msgspec.msgpack.decode(bytes_of(packed, Deleted("bob")), type=Deleted) == Deleted("bob")


def test_msgspec_errors_name_fields_and_no_data() -> None:
    serializer = MsgspecSerializer(Created)
    with pytest.raises(WrongType, match="expected Created or a dict, not str"):
        bytes_of(serializer, "canary")
    with pytest.raises(SchemaMismatch, match=r"does not match Created at \$.age"):
        bytes_of(serializer, {"type": "created", "name": "bob", "age": "canary"})
    with pytest.raises(SchemaMismatch, match="cannot encode it") as caught:
        bytes_of(serializer, Created("bob", object()))  # type: ignore[arg-type]
    assert caught.value.__context__ is None


def test_pydantic_encodes_the_model_and_validates_dicts() -> None:
    serializer = PydanticSerializer(Person)
    assert bytes_of(serializer, Person(name="bob", years=3)) == b'{"name":"bob","age":3}'
    assert bytes_of(serializer, {"name": "bob", "years": "3"}) == b'{"name":"bob","age":3}'
    derived = Employee(name="bob", room="1")
    assert bytes_of(serializer, derived) == b'{"name":"bob","age":0,"room":"1"}'
    by_alias = PydanticSerializer(Person, by_alias=True, exclude_unset=True)
    assert bytes_of(by_alias, Person(name="bob")) == b'{"name":"bob"}'
    assert bytes_of(by_alias, Person(name="bob", years=3)) == b'{"name":"bob","years":3}'


def test_pydantic_errors_name_fields_and_no_data() -> None:
    serializer = PydanticSerializer(Person)
    with pytest.raises(WrongType, match="expected Person or a dict, not str"):
        bytes_of(serializer, "canary")
    with pytest.raises(SchemaMismatch, match=r"Person: name \(missing\), years \(int_parsing\)"):
        bytes_of(serializer, {"years": "canary", "canary": 1})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"owner": "canary"}, "it does not match Account: LookupError"),
        (Account(owner=object()), r"pydantic cannot encode it \(PydanticSerializationError\)"),
    ],
)
def test_other_errors_of_pydantic_are_named_by_class_only(data: Any, text: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"^{text}$") as caught:
        bytes_of(PydanticSerializer(Account), data)
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MsgspecSerializer(list[int]), "use a class or a union"),
        (lambda: MsgspecSerializer(Created("a", 1)), "use a class or a union"),
        (lambda: MsgspecSerializer(Created, format="xml"), "format='xml'"),  # type: ignore[arg-type]
        (lambda: PydanticSerializer(dict), "subclass of pydantic"),
    ],
)
def test_arguments_are_checked(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


@pytest.mark.parametrize(
    ("module", "make", "text"),
    [
        ("msgspec", lambda: MsgspecSerializer(Created), r"pip install 'aiokprod\[json\]'"),
        ("pydantic", lambda: PydanticSerializer(Person), "pip install pydantic"),
        (
            "fastavro",
            lambda: AvroSerializer(Registry("https://a"), "string"),
            r"pip install 'aiokprod\[registry\]'",
        ),
    ],
)
def test_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, make: Any, text: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=text):
        make()


def test_they_are_serializers_of_a_producer() -> None:
    bound = adapt(PydanticSerializer(Person), "value")
    assert bound("t", (), {"name": "bob"}) == b'{"name":"bob","age":0}'
