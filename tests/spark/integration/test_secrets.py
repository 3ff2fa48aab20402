"""Check 5: no output of Spark about queries with secrets contains a secret.

Real sinks, streams and audits, successful and failing, have SASL and TLS secrets in their options.
Afterwards the test searches all outputs: event logs, plans, progress, errors, checkpoints, reports,
and the logs of driver and executors with our loggers at DEBUG level.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.secret_leak_check import CANARY
from tests.security.certs import Authority
from tests.spark.integration.conftest import ROOT
from tests.spark.integration.standalone import standalone

pytestmark = pytest.mark.slow

CA = Authority("spark CA", 20)
CLIENT = CA.issue(number=82, common="alice", client=True)
PASSWORD, KEY_PASSWORD = "canary-alice-secret", "canary-key-secret"
KEY = CLIENT.key(KEY_PASSWORD)
PLAIN_KEY = CLIENT.key()

PROGRAM = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f
    from tests.spark.integration.conftest import session_of
    from tests.spark.integration.spark_helpers import numbers, rate, sink

    given = json.loads(Path(sys.argv[1]).read_text())
    options, topic, folder = given["options"], given["topic"], Path(given["folder"])
    spark = session_of(**{
        "spark__eventLog__enabled": "true",
        "spark__eventLog__dir": (folder / "events").as_uri(),
        "spark__eventLog__compress": "false",
        "spark__log__level": "INFO",
        "spark__executor__memory": "512m",
        "spark__sql__pyspark__worker__logging__enabled": "true",
    })
    servers = options.pop("kafka.bootstrap.servers")

    def fails(write):
        try:
            write()
        except Exception as error:
            print("GAVE UP", error)
        else:
            raise AssertionError("it should have failed")

    frame = numbers(spark, 1000)
    frame.explain(True)
    sink(frame, servers, topic, reportPath=folder / "reports", **options).save()
    once = {"delivery": "transactional", "transactionalIdPrefix": "s"}
    sink(frame, servers, topic, **options, **once).save()

    # What cannot be planned, and what fails in a task: of a row, of the settings there, of a login.
    fails(sink(frame, servers, topic, **options | {"kafka.linger.sm": "1"}).save)
    fails(sink(frame, servers, topic, **options | {"kafka.sasl.password": given["wrong"]}).save)
    fails(sink(frame, servers, topic, preflight="false",
               **options | {"kafka.sasl.password": given["wrong"]}).save)
    fails(sink(frame, servers, topic, **options | {"kafka.ssl.key.password": given["wrong"]}).save)
    word = f.concat(f.translate((f.col("id") * 0).cast("string"), "0", "can"), f.lit("ary-payload"))
    large = spark.range(0, 4, 1, 2).select(f.repeat(word, 200_000).alias("value"))
    fails(sink(large, servers, topic, **options).save)
    lists = spark.range(0, 4, 1, 2).select(word.alias("value"), f.lit(77).alias("partition"))
    fails(sink(lists, servers, topic, **options).save)

    hidden = {"secret." + key: value for key, value in options.items()}
    reader = spark.read.format("aiokprod-audit").option("topic", topic)
    fails(reader.options(**options).option("kafka.bootstrap.servers", servers).load)
    audit = spark.read.format("aiokprod-audit").options(**hidden).option("topic", topic)
    log = audit.option("kafka.bootstrap.servers", servers).load()
    log.explain(True)
    log.createOrReplaceTempView("log")
    print(spark.sql("EXPLAIN FORMATTED SELECT count(*) FROM log").first()[0])
    # Spark takes the key of a write for a secret it hides; of the records, nothing is.
    print("COUNT", log.select("offset").count())
    wrong = audit.option("secret.kafka.sasl.password", given["wrong"])
    fails(lambda: wrong.option("kafka.bootstrap.servers", servers).load().count())

    def stream(name, **more):
        named = options | more
        if name != "plainly named":  # which is refused: Spark 4.0 would show this key
            named["secret.kafka.ssl.keystore.key"] = named.pop("kafka.ssl.keystore.key")
        writer = rate(spark).writeStream.format("aiokprod").options(**named)
        writer = writer.option("kafka.bootstrap.servers", servers).option("topic", topic)
        writer = writer.option("checkpointLocation", str(folder / name))
        return writer.trigger(availableNow=True).start()

    query = stream("plain")
    query.awaitTermination(60)
    query.explain(True)
    print(query.lastProgress, query.status)
    query = stream("once", delivery="exactly_once", transactionalIdPrefix="t")
    query.awaitTermination(60)
    fails(lambda: stream("failing", **{"kafka.sasl.password": given["wrong"]}).awaitTermination(60))

    if spark.version >= "4.1":  # 4.0 shows it in the error that tells of the refusal
        fails(lambda: stream("plainly named").awaitTermination(60))
        for row in spark.sql("SELECT * FROM python_worker_logs()").collect():
            print("WORKER", row.asDict())
    spark.stop()
    """
)
# All our log records go to the logs of driver and executors.
LOUD = """
import logging
logging.getLogger("aiokprod").setLevel(logging.DEBUG)
logging.getLogger("aiokprod").addHandler(logging.StreamHandler())
"""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    folder = tmp_path_factory.mktemp("certificates")
    store = CA.issue("127.0.0.1", "localhost", number=81).write(folder, "broker")
    (folder / "ca.pem").write_text(CA.pem)
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    cluster = KafkaCluster(
        1,
        listeners={
            "SECURE": {
                "security.protocol": "SASL_SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(store),
                "ssl.client.auth": "required",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(folder / "ca.pem"),
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "scram-sha-256.sasl.jaas.config": scram,
            }
        },
        scram_users={"alice": PASSWORD},
    )
    cluster.start_blocking()
    yield cluster
    cluster.stop_blocking()


def options_of(cluster: KafkaCluster) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": cluster.listener("SECURE"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": PASSWORD,
        "kafka.ssl.truststore.certificates": CA.pem,
        "kafka.ssl.keystore.certificate.chain": CLIENT.chain,
        "kafka.ssl.keystore.key": KEY,
        "kafka.ssl.key.password": KEY_PASSWORD,
    }


def leaks(name: str, text: str) -> list[str]:
    """Return the places at which a secret or payload occurs, as plain text, base64, hex, or a line
    of a private key."""
    found = [
        f"{name}: …{text[max(0, hit.start() - 80) : hit.end() + 40]!r}"
        for hit in CANARY.finditer(text)
    ]
    lines = [line for pem in (KEY, PLAIN_KEY) for line in pem.splitlines()[1:-1]]
    return found + [f"{name}: a line of a key, {line[:12]}…" for line in lines if line in text]


@pytest.mark.parametrize("where", ["local", "standalone"])
def test_check_05_what_spark_writes_shows_no_secret(
    secure: KafkaCluster, topic: str, folder: Path, where: str
) -> None:
    for name in ("events", "site", "reports", "cluster"):
        (folder / name).mkdir()
    (folder / "site" / "sitecustomize.py").write_text(LOUD)
    given = {
        "options": options_of(secure),
        "topic": topic,
        "folder": str(folder),
        "wrong": "canary-wrong-secret",
    }
    arguments = folder / "arguments"
    arguments.write_text(json.dumps(given))
    path = os.pathsep.join([str(ROOT), str(folder / "site")])
    environment = dict(os.environ, PYTHONPATH=path)

    def run(**more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(arguments)],
            cwd=ROOT, env=environment | more, timeout=600, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    if where == "local":
        output = run(AIOKPROD_SPARK_MASTER="local[2,2]")
    else:
        with standalone(folder=str(folder / "cluster")) as url:
            output = run(AIOKPROD_SPARK_MASTER=url)
    arguments.unlink()

    texts = {"output": output}
    for file in folder.rglob("*"):
        if file.is_file():
            texts[str(file.relative_to(folder))] = file.read_bytes().decode("latin-1")
    found = [leak for name, text in texts.items() for leak in leaks(name, text)]
    assert not found, "\n".join(found[:5]) + f"\n{len(found)} in all"

    # Check that the search covered the texts in which secrets could occur.
    events = "".join(text for name, text in texts.items() if name.startswith("events"))
    assert events.count("SparkListenerSQLExecutionStart") >= 8
    assert "aiokprod" in events
    assert output.count("GAVE UP") == 9 + (pyspark.__version__ >= "4.1")
    for text in ("the credentials were refused", "did you mean 'kafka.linger.ms'",
                 "RecordTooLarge", "partition 77 is out of range", "COUNT 2"):  # fmt: skip
        assert text in output
    assert "connected to" in "".join(texts.values())  # our records at DEBUG level
    logs = [name for name in texts if name.startswith("cluster/app-")]
    assert bool(logs) == (where == "standalone")
