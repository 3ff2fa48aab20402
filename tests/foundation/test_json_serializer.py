"""Every backend of `JsonSerializer` either encodes a document as the same JSON value, or rejects
it."""

from __future__ import annotations

import builtins
import enum
import importlib.util
import json
import math
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import numpy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokprod.errors import ConfigError, SerializationError
from aiokprod.serializers import JsonSerializer, adapt

BACKENDS = ["json", "orjson", "msgspec"]
REFUSED = object()


def encode(data: object, backend: Any = "json", **options: Any) -> bytes:
    """Return the document as encoded by the adapted serializer, and assert that `serialize` returns
    the same bytes."""
    serializer = JsonSerializer(backend=backend, **options)
    result = adapt(serializer, "value")("t", (), data)
    assert isinstance(result, bytes)
    assert serializer.serialize("t", (), data) == result
    return result


def value(data: object, backend: str) -> object:
    """Return the decoded JSON value, or REFUSED."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    try:
        return json.loads(encode(data, backend), parse_constant=refuse)
    except SerializationError:
        return REFUSED


def same(data: object) -> object:
    """Return the decoded JSON value, and assert that it is the same for each backend."""
    first, *others = (value(data, backend) for backend in BACKENDS)
    for other in others:
        assert other is first if first is REFUSED else other == first, data
    return first


class Colour(enum.Enum):
    RED = "red"
    NUMBER = 7


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


class Count(int):
    pass


class Share(float):
    pass


Pair = namedtuple("Pair", "a b")


@dataclass
class Order:
    _private: Any
    price: Any = None


class Unknown:
    """An object that cannot be encoded and whose repr must not be in an error message."""

    def __repr__(self) -> str:
        return "secret"


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    at: datetime
    amount: Decimal
    named: int = 1
    anything: Any = None


class Root(pydantic.RootModel[list[int]]):
    pass


class Renamed(msgspec.Struct, rename="camel", tag=True):
    some_field: Any


whole_minutes = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
scalars: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**62, 2**65),
    st.floats(),
    st.text(st.characters()),
    st.text(st.characters(codec="utf-8")).map(Text),
    st.integers(-9, 9).map(Count),
    st.floats(allow_nan=False, allow_infinity=False).map(Share),
    st.sampled_from([*Colour, *Level]),
    st.uuids(),
    st.decimals(),
    st.dates(),
    st.datetimes(timezones=st.none() | whole_minutes | st.just(UTC)),
    st.times(timezones=st.none() | st.just(UTC)),
    st.timedeltas(),
    st.binary(max_size=9),
    st.binary(max_size=9).map(bytearray),
    st.integers(-9, 9).map(numpy.int32),
    st.booleans().map(numpy.bool_),
    st.floats(width=32).map(numpy.float32),
    st.floats().map(numpy.float64),
    st.builds(Unknown),
)
keys: Any = st.one_of(
    st.text(max_size=3),
    st.text(st.characters(codec="utf-8"), max_size=3).map(Text),
    st.integers(),
    st.booleans(),
    st.none(),
    st.sampled_from([*Colour, *Level]),
    st.integers(-999, 999).map(float),
    st.uuids(),
    st.dates(),
    st.tuples(st.integers(0, 1)),
    st.builds(Unknown),
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4).map(OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Order, inner, inner),
        st.builds(Renamed, inner),
        st.frozensets(st.integers(0, 9), max_size=1),
    ),
    max_leaves=9,
)


@given(documents)
def test_every_backend_makes_the_same_value(document: object) -> None:
    if document is not None:
        same(document)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"a": [1, True, None, "\u00e4"]}, {"a": [1, True, None, "\u00e4"]}),
        ([math.nan, math.inf, -math.inf, 1.5], [None, None, None, 1.5]),
        ([10**30, -(10**30)], [10**30, -(10**30)]),
        (
            {1: 1, False: 2, None: 3, 2.5: 4, Colour.RED: 5},
            {"1": 1, "false": 2, "null": 3, "2.5": 4, "red": 5},
        ),
        ([Colour.RED, Colour.NUMBER, Level.LOW], ["red", 7, 1]),
        (Order(1, Order("x")), {"_private": 1, "price": {"_private": "x", "price": None}}),
        (Pair(1, 2), [1, 2]),
        ({3}, [3]),
        ([b"\xff\x00", bytearray(b"a"), memoryview(b"a")], ["/wA=", "YQ==", "YQ=="]),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006Z"),
        (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1))), "2026-01-02T00:00:00+01:00"),
        (date(926, 1, 2), "0926-01-02"),
        (time(1, 2, tzinfo=UTC), "01:02:00Z"),
        (timedelta(1, 2, 500_000), "P1DT2.5S"),
        (-timedelta(seconds=1), "-PT1S"),
        (timedelta(0), "P0D"),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ([numpy.int64(1), numpy.float32(0.5), numpy.bool_(True)], [1, 0.5, True]),
        (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (
            [Model(at=datetime(2026, 1, 2, tzinfo=UTC), amount=Decimal("1.10"))],
            [{"at": "2026-01-02T00:00:00Z", "amount": "1.10", "named": 1, "anything": None}],
        ),
        (Root([1, 2]), [1, 2]),
        (Renamed(Colour.RED), {"type": "Renamed", "someField": "red"}),
        ([[1]] * 3, [[1]] * 3),
    ],
)
def test_forms(data: object, expected: object) -> None:
    assert same(data) == expected


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (1j, "cannot encode complex"),
        ([{"secret": Unknown()}], "cannot encode Unknown"),
        (Order(1, [Order(Unknown())]), "Order.price > Order._private: cannot encode Unknown"),
        ({(1, 2): 1}, "cannot encode a key of type tuple"),
        ({Unknown(): 1}, "cannot encode a key of type Unknown"),
        (numpy.datetime64("2026-01-01"), "cannot encode datetime64"),
        ("\ud800", r"\(UnicodeEncodeError\)"),
        ((item for item in "secret"), "cannot encode generator"),
        (Order, "cannot encode type"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_refusals_name_fields_and_types(data: object, text: str, backend: Any) -> None:
    with pytest.raises(SerializationError, match=text) as caught:
        encode(data, backend)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_document_that_contains_itself_is_refused(backend: Any) -> None:
    data: list[Any] = []
    data.append(data)
    with pytest.raises(SerializationError, match="nested too deeply, or contains itself"):
        encode(data, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_250_levels_are_encoded(backend: Any) -> None:
    data: Any = 1
    for _ in range(250):
        data = [data]
    assert encode(data, backend) == b"[" * 250 + b"1" + b"]" * 250


@pytest.mark.parametrize("backend", BACKENDS)
def test_default_gets_objects_of_other_types_only(backend: Any) -> None:
    def default(data: Any) -> Any:
        if isinstance(data, Unknown):
            raise ZeroDivisionError("secret")
        return [data.real, data.imag]

    data = {"a": 1j, "b": Colour.RED, "c": date(2026, 1, 2)}
    assert encode(data, backend, default=default) == (b'{"a":[0.0,1.0],"b":"red","c":"2026-01-02"}')
    assert encode({1j: 2**70}, backend, default=str) == b'{"1j":%d}' % 2**70
    with pytest.raises(SerializationError, match="ZeroDivisionError") as caught:
        encode([Unknown()], backend, default=default)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pydantic_model_with_a_field_of_another_type(backend: Any) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    model = Model(at=at, amount=Decimal(1), anything=Unknown())
    assert json.loads(encode(model, backend, default=repr))["anything"] == "secret"
    with pytest.raises(SerializationError):
        encode(model, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_are_sorted(backend: Any) -> None:
    data: dict[str, Any] = {
        "b": {"d": 1, "c": Order(1, {"z": 1, "y": 2})},
        "a": 1,
        "\u00e4": 1,
        "\U0001f600": 1,
    }
    expected = (
        '{"a":1,"b":{"c":{"_private":1,"price":{"y":2,"z":1}},"d":1},"\u00e4":1,"\U0001f600":1}'
    )
    assert encode(data, backend, sort_keys=True) == expected.encode()
    data["b"]["d"] = 2**80
    assert encode(data, backend, sort_keys=True) == expected.replace('d":1', f'd":{2**80}').encode()


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner)
        ),
        max_leaves=8,
    )
)
def test_bytes_of_the_default_backend_are_those_of_the_standard_library(document: object) -> None:
    if document is not None:
        expected = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        assert encode(document) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ensure_ascii": True}, b'{"a":"\\u00e4","b":[1,null]}'),
        ({"indent": 1}, b'{\n "a":"\xc3\xa4",\n "b":[\n  1,\n  null\n ]\n}'),
        ({"separators": (", ", ": ")}, b'{"a": "\xc3\xa4", "b": [1, null]}'),
        ({"separators": [", ", ":"]}, b'{"a":"\xc3\xa4", "b":[1, null]}'),
        ({"allow_nan": True}, b'{"a":"\xc3\xa4","b":[1,NaN]}'),
    ],
)
def test_format_options_need_the_standard_library(options: dict[str, Any], expected: bytes) -> None:
    data = {"a": "\u00e4", "b": [1, math.nan]}
    assert encode(data, **options) == expected
    assert encode(data, "auto", **options) == expected
    assert JsonSerializer(backend="auto", **options).backend == "json"
    (name,) = options
    for backend in ("orjson", "msgspec"):
        with pytest.raises(ConfigError, match=f"{name}=.*{backend} cannot.*use backend='json'"):
            JsonSerializer(backend=backend, **options)


def test_allow_nan_holds_for_documents_that_need_a_second_pass() -> None:
    data = {(date(2026, 1, 2)): [math.nan]}
    assert encode(data, allow_nan=True) == b'{"2026-01-02":[NaN]}'
    with pytest.raises(SerializationError, match="ValueError"):
        encode(data, allow_nan=False)
    with pytest.raises(SerializationError, match="ValueError"):
        encode([math.nan], allow_nan=False)


@pytest.mark.parametrize("option", ["skipkeys", "cls", "check_circular"])
def test_other_options_are_refused(option: str) -> None:
    options: dict[str, Any] = {option: True}
    with pytest.raises(ConfigError, match=f"{option}=True.*lambda data: json.dumps"):
        JsonSerializer(**options)


def test_unknown_backend_is_refused() -> None:
    wrong: Any = "ujson"
    with pytest.raises(ConfigError, match=r"backend='ujson'.*'json', 'orjson', 'msgspec', 'auto'"):
        JsonSerializer(backend=wrong)


@pytest.mark.parametrize(
    ("missing", "chosen"),
    [([], "orjson"), (["orjson"], "msgspec"), (["orjson", "msgspec"], "json")],
)
def test_auto_takes_what_is_installed(
    missing: list[str], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name)
    )
    assert JsonSerializer(backend="auto").backend == chosen
    assert JsonSerializer().backend == "json"


@pytest.mark.parametrize("backend", ["orjson", "msgspec"])
def test_missing_backend_names_the_extra(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_backend(name: str, globals_: Mapping[str, object] | None = None, *arguments: Any) -> Any:
        if name.partition(".")[0] == backend:
            raise ModuleNotFoundError(name)
        return real_import(name, globals_, *arguments)

    for name in [name for name in sys.modules if name.partition(".")[0] == backend]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", no_backend)
    with pytest.raises(ConfigError, match=rf"package {backend}: pip install 'aiokprod\[json\]'"):
        JsonSerializer(backend=backend)


def test_derived_class_decides_itself() -> None:
    class Framed(JsonSerializer):
        def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
            return topic.encode() + super().serialize(topic, headers, data)

    assert adapt(Framed(), "value")("t", (), [1]) == b"t[1]"


@pytest.mark.parametrize("backend", ["orjson", "msgspec"])
def test_core_calls_the_encoder_without_a_python_function(backend: Any) -> None:
    calls: list[str] = []
    bound = adapt(JsonSerializer(backend=backend), "value")
    sys.setprofile(
        lambda frame, event, argument: (
            calls.append(frame.f_code.co_name) if event == "call" else None
        )
    )
    try:
        bound("t", (), {"a": 1})
    finally:
        sys.setprofile(None)
    assert calls == []
