"""Cases, their options and the catalogue: the possible selections, and the errors for invalid
ones."""

from __future__ import annotations

import argparse
import json

import pytest

from aiokprod._wire.compression import CODEC_NAMES
from benchmarks import case as cases
from benchmarks import catalogue, payloads, suite
from benchmarks.__main__ import build_parser, main
from benchmarks.case import CODECS, Case
from benchmarks.clients import PYTHON_CLIENTS
from benchmarks.targets import AIOKAFKA


def parse(*arguments: str) -> Case:
    parser = argparse.ArgumentParser()
    cases.add_options(parser)
    return cases.from_options(parser.parse_args(arguments))


def test_codecs_of_the_benchmarks_are_those_of_the_producer() -> None:
    assert CODECS == CODEC_NAMES


def test_options_default_to_the_defaults_of_a_case() -> None:
    assert parse() == Case()


def test_every_field_is_an_option() -> None:
    found = parse(
        "--scenario", "await", "--client", "aiokafka", "--cluster", "kafka", "--records", "10",
        "--seconds", "0.5", "--tasks", "7", "--size", "20", "--keyed", "--headers", "2",
        "--codec", "zstd", "--no-idempotent", "--acks", "1", "--partitions", "9", "--topics", "4",
        "--replicas", "3", "--settle", "gather", "--rate", "5", "--loop", "asyncio",
        "--timeout", "2.5", "--partitioner", "callable", "--buffer", "bytearray",
    )  # fmt: skip
    assert found == Case(
        scenario="await", client="aiokafka", cluster="kafka", records=10, seconds=0.5, tasks=7,
        size=20, keyed=True, headers=2, codec="zstd", idempotent=False, acks="1", partitions=9,
        topics=4, replicas=3, settle="gather", rate=5, loop="asyncio",
        timeout=2.5, partitioner="callable", buffer="bytearray",
    )  # fmt: skip


def test_a_case_survives_json() -> None:
    case = Case(client="java", cluster="kafka", replicas=3, codec="lz4")
    assert Case(**json.loads(json.dumps(case.to_json()))) == case


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client": "kafkajs"}, "client='kafkajs': choose one of"),
        ({"codec": "brotli"}, "codec='brotli': choose one of"),
        ({"partitions": 0}, "partitions=0: allowed are 1 to 10000"),
        ({"size": 9}, "size=9: allowed are 10 to"),
        ({"seconds": 0}, "seconds=0: allowed are 0 to 600"),
        ({"acks": "1"}, "acks=1: needs idempotent=False"),
        ({"acks": "0", "idempotent": False}, "answers requests that want no answer: use kafka"),
        ({"client": "java", "keyed": True}, "java cannot do this case: it sends values only"),
        ({"client": "confluent", "scenario": "await"}, "its scenarios are fire, bulk"),
        ({"client": "confluent-aio", "headers": 1}, "refuses headers"),
        ({"client": "blaster", "serializer": "json"}, "cannot do this case: it sends bytes"),
        ({"client": "java", "serializer": "orjson"}, "java cannot do this case: it has json"),
        ({"client": "java-default", "hook": "interceptor"}, "measured with the settings of java"),
        ({"client": "aiokafka", "hook": "interceptor"}, "interceptor is a hook of aiokprod, java"),
        ({"client": "confluent", "partitioner": "callable"}, "callable is a partitioner of"),
        ({"client": "confluent", "buffer": "memoryview"}, "it takes bytes only"),
        ({"buffer": "bytearray", "serializer": "text"}, "its values are those of the serializer"),
        ({"timeout": 5.0}, "a timeout is one of the scenario await"),
        ({"timeout": -1.0}, "timeout=-1.0: allowed are 0"),
        ({"client": "confluent-aio", "scenario": "await", "timeout": 5.0}, "timeouts are measured"),
        ({"client": "aiokafka", "settle": "on_delivery"}, "its function of the call is `callback`"),
        ({"client": "confluent-aio", "serializer": "text"}, "AIOProducer has no serializers"),
        ({"client": "aiokprod-asis", "settle": "callback"}, "callbacks are measured with"),
        ({"settle": "callback", "tasks": 2}, "with values only, and one task"),
        ({"scenario": "bulk", "serializer": "text"}, "python -m benchmarks.bulk"),
        ({"client": "round-trip", "scenario": "await", "tasks": 2}, "one plain record after"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Case(**changes)  # type: ignore[arg-type]


def test_a_wrong_case_ends_the_command_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--client", "java", "--keyed"]) == 2
    assert "values only" in capsys.readouterr().err


def test_run_takes_several_clients() -> None:
    chosen = build_parser().parse_args(["run", "--client", "aiokprod", "blaster", "--runs", "2"])
    assert (chosen.client, chosen.runs) == (["aiokprod", "blaster"], 2)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("cluster", ["mock", "kafka"])
def test_the_catalogue_has_distinct_groups_on_its_cluster(cluster: str, full: bool) -> None:
    groups = catalogue.groups(cluster, full)
    names = [group.name for group in groups]
    assert len(set(names)) == len(names)
    for group in groups:
        assert group.cases, group.name
        assert {case.cluster for case in group.cases.values()} == {cluster}
        # Topics stay in the cluster. A case with fewer topics must therefore not follow one with
        # more.
        topics = [case.topics for case in group.cases.values()]
        assert topics == sorted(topics)


def test_java_and_go_are_measured_on_real_brokers_only() -> None:
    clients = {
        cluster: {
            case.client for group in catalogue.groups(cluster) for case in group.cases.values()
        }
        for cluster in ("mock", "kafka")
    }
    assert {"java", "franz-go"} <= clients["kafka"]
    assert not {"java", "franz-go"} & clients["mock"]
    assert set(AIOKAFKA) | {"aiokprod", "blaster"} <= clients["mock"]


def test_suite_refuses_a_group_that_does_not_exist() -> None:
    chosen = build_parser().parse_args(["suite", "--only", "fire", "rocket"])
    with pytest.raises(ValueError, match=r"only=\['rocket'\]: no such group; there are fire"):
        suite.chosen_groups(chosen)


def test_suite_leaves_clients_out() -> None:
    chosen = build_parser().parse_args(
        ["suite", "--cluster", "kafka", "--only", "fire-rf1", "--without", "java", "confluent"]
    )
    (group,) = suite.chosen_groups(chosen)["kafka"]
    assert set(group.cases) == {"aiokprod", "aiokafka", "aiokafka-tuned", "franz-go", "blaster"}


def test_suite_shortens_every_run() -> None:
    chosen = build_parser().parse_args(["suite", "--cluster", "mock", "--seconds", "0.25"])
    for group in suite.chosen_groups(chosen)["mock"]:
        assert {case.seconds for case in group.cases.values()} == {0.25}


def test_every_client_is_known_to_the_worker() -> None:
    others = {"java", "java-default", "franz-go", "blaster", "round-trip"}
    assert set(cases.CLIENTS) == set(PYTHON_CLIENTS) | others


@pytest.mark.parametrize("size", [10, 11, 100, 1024, 100_000])
def test_values_have_the_size_asked_for_and_are_one_line(size: int) -> None:
    made = payloads.make(Case(size=size))
    assert {len(value) for value in made.values} == {size}
    assert not any(b"\n" in value for value in made.values)  # Java reads one value per line
    assert made.keys is None
    assert made.headers is None


@pytest.mark.parametrize("kind", ["text", "json"])
def test_values_of_a_serializer_become_about_as_many_bytes(kind: str) -> None:
    case = Case(size=200, serializer=kind)
    serialize = payloads.serializer(case)
    assert serialize is not None
    sizes = {len(serialize(value)) for value in payloads.make(case).values}
    assert 150 < min(sizes) <= max(sizes) < 260


def test_keys_and_headers_are_made_on_demand_and_always_the_same() -> None:
    case = Case(keyed=True, headers=2)
    made = payloads.make(case)
    assert made == payloads.make(case)
    assert made.headers is not None
    assert [name for name, _ in made.headers] == ["header-0", "header-1"]
    assert made.keys is not None
    assert {len(key) for key in made.keys} == {16}
    assert len(set(made.keys)) > 5_000
