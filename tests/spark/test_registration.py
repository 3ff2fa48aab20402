"""`register` and `foreach_batch` with stand-ins for both kinds of sessions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod import ConfigError
from aiokprod.spark import AiokprodAuditSource, AiokprodDataSource, foreach_batch, register
from aiokprod.spark.context import QUERY_ID

SERVERS = {"kafka.bootstrap.servers": "b:9092", "topic": "t"}
ONCE = {"delivery": "Exactly_Once", "transactionalIdPrefix": "p"}


class Spark:
    """A session. If `classic`, it has a JVM."""

    def __init__(self, *, classic: bool, query_id: str | None = None, known: str = "") -> None:
        self.registered: list[Any] = []
        self.active: list[Any] = []
        self.dataSource = SimpleNamespace(register=self._register)
        self._known = known
        if classic:
            self._jsparkSession = object()
            activate = SimpleNamespace(setActiveSession=self.active.append)
            self._jvm = SimpleNamespace(SparkSession=activate)
            properties = {QUERY_ID: query_id}
            self._sc = SimpleNamespace(getLocalProperty=properties.get)

    def _register(self, source: Any) -> None:
        if self._known:
            raise RuntimeError(f"[{self._known}] The data source '{source.name()}'")
        self.registered.append(source)


class Frame:
    """A DataFrame that records its writes and their options."""

    def __init__(self, spark: Spark) -> None:
        self.sparkSession = spark
        self.write = self
        self.told: list[tuple[str, str]] = []
        self.given: dict[str, str] = {}
        self.saved: list[dict[str, str]] = []

    def format(self, name: str) -> Frame:
        self.told.append(("format", name))
        return self

    def mode(self, name: str) -> Frame:
        self.told.append(("mode", name))
        return self

    def options(self, **options: str) -> Frame:
        self.given |= options
        return self

    def option(self, name: str, value: str) -> Frame:
        self.given[name] = value
        return self

    def save(self) -> None:
        self.saved.append(self.given)


@pytest.mark.parametrize("classic", [True, False])
def test_both_formats_are_registered_and_a_classic_session_is_made_active(classic: bool) -> None:
    spark = Spark(classic=classic)
    register(spark)
    assert spark.registered == [AiokprodDataSource, AiokprodAuditSource]
    assert spark.active == ([spark._jsparkSession] if classic else [])


def test_formats_that_spark_found_itself_are_no_error() -> None:
    spark = Spark(classic=True, known="DATA_SOURCE_ALREADY_EXISTS")
    register(spark)
    assert spark.active == [spark._jsparkSession]
    with pytest.raises(RuntimeError, match="SOMETHING_ELSE"):
        register(Spark(classic=True, known="SOMETHING_ELSE"))


@pytest.mark.parametrize("classic", [True, False])
def test_batch_is_appended_with_its_number_and_query(classic: bool) -> None:
    write = foreach_batch(SERVERS | ONCE, query_id="mine")
    frame = Frame(Spark(classic=classic, query_id="spark's"))
    write(frame, 7)
    assert frame.told == [("format", "aiokprod"), ("mode", "append")]
    (given,) = frame.saved
    assert (given["batchId"], given["queryId"]) == ("7", "mine")
    assert given["topic"] == "t"
    assert frame.sparkSession.registered == [AiokprodDataSource, AiokprodAuditSource]


def test_query_is_that_of_spark_unless_one_is_named() -> None:
    frame = Frame(Spark(classic=True, query_id="spark's"))
    foreach_batch(SERVERS | ONCE)(frame, 0)
    assert [(one["batchId"], one["queryId"]) for one in frame.saved] == [("0", "spark's")]


@pytest.mark.parametrize("classic", [True, False])
def test_query_that_is_not_known_is_needed_for_exactly_once_only(classic: bool) -> None:
    frame = Frame(Spark(classic=classic))
    with pytest.raises(ConfigError, match=r"call foreach_batch\(options, query_id=\.\.\.\)"):
        foreach_batch(SERVERS | ONCE)(frame, 0)
    assert frame.saved == []
    for delivery in ({}, {"delivery": "at_least_once"}):
        frame = Frame(Spark(classic=classic))
        foreach_batch(SERVERS | delivery)(frame, 0)
        (given,) = frame.saved
        assert given.keys().isdisjoint({"batchId", "queryId"})


def test_wrong_options_are_refused_when_the_function_is_made() -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        foreach_batch({"topic": "t"})
