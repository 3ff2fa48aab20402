"""The tables of other clients' settings: they are complete for the installed clients, and every
entry leads to a field or to advice."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from aiokprod import ConfigError, Producer, ProducerConfig
from aiokprod._config.foreign_names import (
    AIOKAFKA,
    FOREIGN_NAMES,
    KAFKA_PYTHON,
    VALUES,
    dotted,
    replacement,
)

FIELDS = {field.name for field in dataclasses.fields(ProducerConfig)}
ROWS = [(client, name) for client, table in FOREIGN_NAMES.items() for name in table]


@pytest.mark.parametrize(("client", "name"), ROWS)
def test_a_name_leads_to_a_field_or_to_advice(client: str, name: str) -> None:
    field = FOREIGN_NAMES[client][name]
    assert field is None or field in FIELDS
    assert name == dotted(name)
    keyword = name.replace(".", "_")
    if keyword in FIELDS:  # the same name has another meaning
        assert field is None
        return
    if hasattr(inspect.signature(Producer).parameters.get(keyword), "kind"):
        return  # an argument of Producer, not a setting
    with pytest.raises(ConfigError) as caught:
        Producer(bootstrap_servers="b:1", **{keyword: "private"})  # type: ignore[call-overload]
    text = str(caught.value)
    assert f"{keyword!r} is not a setting" in text
    assert "private" not in text
    assert any(word in text for word in ("use ", "leave it out", "pass ", "set ", "not in this ver",
        "read secrets", "see docs", "not kinit"))  # fmt: skip
    if field is not None:
        assert field in text


def test_the_tables_have_every_argument_of_the_clients_installed_here() -> None:
    kafka = pytest.importorskip("kafka")
    aiokafka = pytest.importorskip("aiokafka")
    theirs = set(kafka.KafkaProducer.DEFAULT_CONFIG)
    assert {x for x in theirs if x not in FIELDS and dotted(x) not in KAFKA_PYTHON} == set()
    theirs = set(inspect.signature(aiokafka.AIOKafkaProducer).parameters)
    assert {x for x in theirs if x not in FIELDS and dotted(x) not in AIOKAFKA} == set()


def test_clients_agree_on_the_meaning_of_a_name() -> None:
    for name in {name for _, name in ROWS}:
        meanings = {table[name] for table in FOREIGN_NAMES.values() if name in table}
        assert len(meanings) == 1, name


def test_no_name_without_a_counterpart_is_spelled_as_a_field() -> None:
    """If a field is later added under a name that the table lists without a counterpart, the table
    must be updated: the field may be that counterpart."""
    spelled = {
        name for client, name in ROWS
        if FOREIGN_NAMES[client][name] is None and name.replace(".", "_") in FIELDS
    }  # fmt: skip
    assert spelled == {"ssl.keystore.location"}  # PKCS#12 in librdkafka, PEM here


def test_values_belong_to_names_with_a_field() -> None:
    assert all(replacement(name) for name in VALUES)


def test_a_replacement_is_found_in_any_spelling() -> None:
    assert replacement(" Max_Batch_Size ") == "batch_size"
    assert replacement("queue.buffering.max.ms") == "linger_ms"
    assert replacement("loop") is None
    assert replacement("no.such.name") is None
