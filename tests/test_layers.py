"""Rules across files: layers, clocks, randomness."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "aiokprod"

FOUNDATION = {
    "_backoff", "_config", "_consumer_groups", "_errors", "_histogram", "_json", "_log_fields",
    "_metrics", "_redaction", "_security", "_version", "cluster", "config", "environment", "errors",
    "findings", "interceptors", "observer", "partitioners", "plugins", "records", "security",
    "serializers",
    "topic_profiles",
}  # fmt: skip
"""Public values and extension points, and their building blocks."""
FACADE = {"app", "blocking", "producer", "_client"}
ALLOWED = {
    "_core": {"_core"},
    "_arrow": {"_core", "_arrow"},
    "foundation": {"_core", "foundation"},
    "_wire": {"_core", "foundation", "_wire"},
    "_net": {"_core", "foundation", "_wire", "_net"},
    "_engine": {"_core", "foundation", "_wire", "_engine"},
    "facade": {"_core", "_arrow", "foundation", "_wire", "_net", "_engine", "facade"},
    "observe": {"foundation", "_wire", "facade", "observe"},
    "_compat": {"_core", "foundation", "_compat"},
    "serdes": {"foundation", "serdes"},
    "compat": {"foundation", "facade", "_compat", "compat"},
    "testing": {"_core", "foundation", "_wire", "testing"},
    "_cli": {"_core", "foundation", "facade", "_compat", "_cli"},
    "__main__": set(),
}
MORE_ALLOWED = {
    # A subclass of `Producer`, which changes the order in which its engine sends.
    "aiokprod.testing.recording_producer": {"facade", "_engine"},
}
"""Additional layers that these modules may import."""
SPARK_MAY_IMPORT = {
    "aiokprod._client.cluster_client",
    "aiokprod._log_fields",  # its log records have the same fields
    "aiokprod._redaction",  # a decorator for all code that has secrets in local variables
}
"""Modules that Spark code may import in addition to its own modules and the public ones."""


def modules() -> Iterator[Path]:
    yield from sorted(PACKAGE.rglob("*.py"))
    yield from sorted(PACKAGE.rglob("*.pyx"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def layer_of(module: str) -> str | None:
    """Return the layer of a dotted module name, or None for the package itself."""
    parts = module.split(".")
    if len(parts) == 1:
        return None
    if parts[1] in FOUNDATION:
        return "foundation"
    if parts[1] in FACADE:
        return "facade"
    return parts[1]


def imports_of(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, including type-checking imports."""
    text = path.read_text()
    if path.suffix == ".pyx":
        words = [line.split() for line in text.splitlines() if line.lstrip().startswith("from ")]
        return {line[1] for line in words if line[1].startswith("aiokprod")}
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.split(".")[0] == "aiokprod"}


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_layers_module_imports_only_to_its_right(path: Path) -> None:
    layer = layer_of(name_of(path).removesuffix(".__init__"))
    if layer is None:
        return  # the package re-exports from anywhere
    if layer == "spark":
        hidden = {name for name in imports_of(path) if not spark_may_import(name)}
        assert not hidden, f"{name_of(path)} imports private modules"
        return
    assert layer in ALLOWED, f"{name_of(path)} belongs to no layer: name it in this test"
    allowed = ALLOWED[layer] | MORE_ALLOWED.get(name_of(path), set())
    for imported in imports_of(path):
        target = layer_of(imported)
        if layer in {"testing", "serdes", "_cli"} and target is None:
            continue  # they may use the public names
        assert target in allowed, f"{name_of(path)} ({layer}) imports {imported} ({target})"


def spark_may_import(module: str) -> bool:
    parts = module.split(".")
    public = not any(part.startswith("_") for part in parts[1:]) and parts[1:2] != ["testing"]
    return public or parts[1:2] == ["spark"] or module in SPARK_MAY_IMPORT


def test_layers_detects_a_private_import_of_spark() -> None:
    assert spark_may_import("aiokprod")
    assert spark_may_import("aiokprod.producer")
    assert spark_may_import("aiokprod.spark._readback")
    assert not spark_may_import("aiokprod._client.cluster_client.requests")
    assert not spark_may_import("aiokprod._wire.messages.fetch")
    assert not spark_may_import("aiokprod.testing.virtual")


def test_layers_detects_a_wrong_import(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from aiokprod._engine.buffer.producer_batch import ProducerBatch\n")
    (imported,) = imports_of(wrong)
    assert layer_of(imported) not in ALLOWED["_net"]


CLOCKS = {"time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns"}


def clock_reads(path: Path) -> list[int]:
    """Return the lines that read a clock of the time module or of datetime."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value
        if isinstance(owner, ast.Name) and (
            (owner.id == "time" and node.func.attr in CLOCKS)
            or (owner.id in {"datetime", "date"} and node.func.attr in {"now", "utcnow", "today"})
        ):
            lines.append(node.lineno)
    return lines


# `environment` defines the clock; real brokers, their processes and pipes run in real time.
CLOCK_READERS = {
    "_cli.perf", "_cli.produce", "_cli.progress",  # they measure for a terminal
    "environment", "testing.kafka_cluster", "testing.kafka_node", "testing.kafka_admin",
    "testing.kafka_artifacts", "testing.kafka_container", "testing.kafka_zookeeper",
    "testing.mock_cluster", "testing.reaper",
}  # fmt: skip


@pytest.mark.parametrize("path", [p for p in modules() if p.suffix == ".py"], ids=name_of)
def test_clock_is_read_only_through_the_environment(path: Path) -> None:
    if name_of(path).removeprefix("aiokprod.") in CLOCK_READERS:
        return
    assert not clock_reads(path), "time inside is loop.time(), wall time is Environment.unix_ms"


def test_clock_reads_are_detected(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import time\n\n\ndef now():\n    return time.monotonic()\n")
    assert clock_reads(wrong) == [5]


@pytest.mark.parametrize("path", [p for p in modules() if p.suffix == ".py"], ids=name_of)
def test_randomness_comes_from_the_environment(path: Path) -> None:
    """The functions of the random module itself are forbidden: they cannot be seeded per
    producer."""
    if name_of(path).removeprefix("aiokprod.") in CLOCK_READERS:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "random":
                assert node.func.attr == "Random", f"line {node.lineno}"


ENABLED = re.compile(r"\.enabled\s*=[^=]")
SNAPSHOT = re.compile(r"appender\.snapshot\s*=[^=]")


def writers(pattern: re.Pattern[str]) -> dict[str, int]:
    """Count how often each module contains the pattern."""
    found = {name_of(path): len(pattern.findall(path.read_text())) for path in modules()}
    return {module: count for module, count in found.items() if count}


def test_only_the_fast_path_switch_enables_the_fast_path() -> None:
    """`Appender.enabled` is public only for this switch; the constructor of `Appender` sets
    False."""
    assert writers(ENABLED) == {"aiokprod._client.fast_path": 1, "aiokprod._core.append": 1}
    appender = (PACKAGE / "_core" / "append.pyx").read_text()
    assert "self.enabled = False\n" in appender


def test_only_the_runtime_gives_the_append_path_its_metadata() -> None:
    """`Appender.snapshot` is public only for the runtime."""
    assert writers(SNAPSHOT) == {"aiokprod._client.runtime": 1}
