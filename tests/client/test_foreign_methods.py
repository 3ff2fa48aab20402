"""Method names of other clients lead to hints about `Producer` methods, and hide no attribute."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from aiokprod import Producer
from aiokprod._client.foreign_methods import FOREIGN_METHODS

PRODUCER = Producer(bootstrap_servers="b:1")


@pytest.mark.parametrize("name", FOREIGN_METHODS)
def test_a_foreign_name_names_ours(name: str) -> None:
    assert not hasattr(Producer, name)
    with pytest.raises(AttributeError) as caught:
        getattr(PRODUCER, name)
    assert FOREIGN_METHODS[name] in str(caught.value)
    assert caught.value.name == name
    assert caught.value.obj is PRODUCER
    for ours in re.findall(r"producer\.(\w+)", FOREIGN_METHODS[name]):
        assert hasattr(Producer, ours)


def test_other_names_get_pythons_text() -> None:
    with pytest.raises(AttributeError, match=r"^'Producer' object has no attribute 'no_such'$"):
        PRODUCER.no_such  # type: ignore[attr-defined]  # noqa: B018
    assert getattr(PRODUCER, "no_such", 5) == 5


def test_public_methods_of_other_clients_have_a_hint_or_the_same_name() -> None:
    """Constants and three methods about settings and the cluster are exempt."""
    aiokafka = pytest.importorskip("aiokafka")
    kafka = pytest.importorskip("kafka")
    confluent = pytest.importorskip("confluent_kafka")
    theirs: set[str] = set()
    for cls in (aiokafka.AIOKafkaProducer, kafka.KafkaProducer, confluent.Producer):
        theirs |= {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}
    rest = {name for name in theirs if name not in FOREIGN_METHODS and not hasattr(Producer, name)}
    constants = {name for name in rest if name.isupper()}
    assert rest - constants <= {"config", "max_usable_produce_magic", "cluster_id"}


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_producer_is_neither_pickled_nor_copied(use: object) -> None:
    assert callable(use)
    with pytest.raises(TypeError, match="cannot be pickled or copied: create one in each process"):
        use(PRODUCER)
