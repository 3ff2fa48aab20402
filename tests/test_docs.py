"""The reference pages in docs/ contain exactly the names in the code, with their defaults."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import aiokprod
from aiokprod import Health, Metrics, Observer, Outcome, ProducerConfig, TopicProfile, errors
from aiokprod._client.runtime import Runtime
from aiokprod._core.batch import Delivery
from aiokprod._core.record_fields import DELIVERY_CHARGE
from aiokprod._engine.buffer.accumulator import RecordAccumulator
from aiokprod._engine.buffer.batch_compressor import BatchCompressor
from aiokprod._engine.buffer.batch_states import TRANSITIONS, BatchState
from aiokprod._engine.identity.transaction_manager import TransactionManager
from aiokprod._engine.identity.transaction_states import TRANSITIONS as TXN_TRANSITIONS
from aiokprod._engine.identity.transaction_states import TxnState
from aiokprod._engine.sender.batch_completion import BatchCompletion
from aiokprod._engine.sender.sender import Sender
from aiokprod._errors import Code, ErrorCode
from aiokprod._metrics.definitions import BY_NAME
from aiokprod._wire.compression import CODEC_NAMES
from aiokprod.testing import FakeCluster, fake_cluster, pytest_plugin

DOCS = Path(__file__).parents[1] / "docs"
OTHERS = {"UnknownTopicOrPartitionError", "BufferError", "TimeoutError", "ValueError", "OSError"}


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    return page(name).split(f"\n## {heading}\n")[1].split("\n## ")[0]


def first_column(text: str) -> list[str]:
    """Return the names in code style in the first cell of every table row."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    return [name for row in rows for name in re.findall(r"`(\w+)[`(]", row)]


def test_every_codec_is_described() -> None:
    (text,) = re.findall(r"^ +compression_type: .*", ProducerConfig.__doc__ or "", re.MULTILINE)
    (profile,) = re.findall(r"^ +compression_type: .*", TopicProfile.__doc__ or "", re.MULTILINE)
    for described in (text, profile):
        assert re.findall(r'"(\w+)"', described) == [*CODEC_NAMES]


def version_constants() -> set[str]:
    """Return the constants that the producer compares with the version of a message, or that limit
    the version of a request."""
    root = DOCS.parent / "aiokprod"
    found = set()
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] in {"_wire", "testing"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            operands: list[ast.expr] = []
            if isinstance(node, ast.Compare) and re.search(r"\bversion [<>=]", ast.unparse(node)):
                operands = [one for one in node.comparators if not isinstance(one, ast.Call)]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "VersionedRequest":
                operands = node.args[2:]
            for one in (one for operand in operands for one in ast.walk(operand)):
                if isinstance(one, ast.Name | ast.Attribute):
                    name = ast.unparse(one).split(".")[-1]
                    if name.isupper():
                        found.add(name)
    return found


def test_contributing_page_names_every_constant_about_versions() -> None:
    text = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("### a version of an API")[1].split("\n### ")[0]
    assert version_constants() <= set(re.findall(r"`(_?[A-Z_]+)`", section))


def test_error_page_has_every_class_under_its_base() -> None:
    table = section("errors.md", "Classes")
    named = set(re.findall(r"`([A-Z]\w+)`", table)) - OTHERS
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.KafkaError)
    }
    assert named == classes - {"KafkaError"}
    for base, inherited in re.findall(r"^\| `(\w+)`.*?\| `(\w+)` \|", table, re.MULTILINE):
        assert issubclass(getattr(errors, base), vars(builtins)[inherited])


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_errors_named_in_the_docs_are_public(path: Path) -> None:
    pattern = r"`(\w+(?:Error|Timeout|Topic|Rejected|TooLarge|Block|Full))`"
    named = set(re.findall(pattern, path.read_text(encoding="utf-8"))) - OTHERS
    if path.stem not in {"differences", "faults"}:  # they also name classes of Java and librdkafka
        assert named <= set(aiokprod.__all__)


def test_error_page_has_every_outcome() -> None:
    named = set(re.findall(r"`Outcome\.(\w+)`", page("errors.md")))
    assert named == {outcome.name for outcome in Outcome}


def test_monitoring_page_has_the_table_of_metrics() -> None:
    """After a change of the table, run `python .ci/metrics_table.py`."""
    script = runpy.run_path(str(DOCS.parent / ".ci" / "metrics_table.py"))
    text = page("monitoring.md")
    assert script["updated"](text) == text


def test_every_metric_has_its_values() -> None:
    source = inspect.getsource(Runtime.gauges)
    gauges = set(re.findall(r'^ {12}"(\w+)": ', source, re.MULTILINE))
    assert gauges
    assert set(BY_NAME) == set(Metrics().snapshot()) | gauges


def test_monitoring_page_has_every_field_of_health() -> None:
    named = first_column(section("monitoring.md", "Health checks"))
    assert named == [field.name for field in dataclasses.fields(Health)]


def test_monitoring_page_has_every_hook() -> None:
    named = first_column(section("monitoring.md", "Observers"))
    assert sorted(named) == sorted(name for name in vars(Observer) if name.startswith("on_"))


def test_testing_page_has_every_fixture() -> None:
    named = first_column(page("testing.md").split("It has fixtures")[1])
    assert set(named) == {
        name
        for name, value in vars(pytest_plugin).items()
        if type(value).__name__ == "FixtureFunctionDefinition"
    }


def test_the_tests_of_the_testing_page_pass(pytester: pytest.Pytester) -> None:
    for title in ("With pytest", "Broker failures", "Web services"):
        code = re.findall(r"```python\n(.*?)```", section("testing.md", title), re.DOTALL)
        pytester.makepyfile(**{f"test_{title.replace(' ', '_').lower()}": "\n".join(code)})
    result = pytester.runpytest_subprocess(
        "-p", "pytest_aiokprod", "-p", "no:asyncio", "-W", "error"
    )
    result.assert_outcomes(passed=7)


def test_testing_page_names_methods_and_reactions_that_exist() -> None:
    text = section("testing.md", "Broker failures")
    methods = set(first_column(text)) | {"count"}
    assert len(methods) > 15
    assert methods <= set(dir(FakeCluster))
    reactions = set(re.findall(r"`(\w+)\(", text.split("Reactions,")[1]))
    assert len(reactions) == 9
    assert reactions <= set(fake_cluster.__all__)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.stem)
def test_python_in_the_docs_compiles(path: Path) -> None:
    for example in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        compile(example, path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    "path", sorted([*DOCS.glob("*.md"), *DOCS.glob("migration/*.md")]), ids=lambda path: path.stem
)
def test_pages_for_users_link_only_pages_of_the_folder(path: Path) -> None:
    """A user may have only this folder, so only the index may link files outside it."""
    for name in re.findall(r"\]\((\.\./[^)#]+)", path.read_text(encoding="utf-8")):
        inside = (path.parent / name).resolve().is_relative_to(DOCS)
        assert inside or path.name == "index.md", name


def test_readme_and_pyproject_have_the_same_extras() -> None:
    with (DOCS.parent / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    named = readme.split("The extras are ")[1].split("\n\n")[0]
    assert set(re.findall(r"`([\w-]+)`", named)) == extras


def test_index_links_every_page_once() -> None:
    linked = re.findall(r"\]\(([^)#]+\.md)\)", page("index.md"))
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(name for name in linked if not name.startswith("../")) == sorted(
        set(pages) - {"index.md"}
    )
    assert "](docs/index.md)" in (DOCS.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["network.md", "sender.md", "transactions.md"])
def test_state_diagrams_are_those_of_the_tables(name: str) -> None:
    """After a change of a table, run `python .ci/diagrams.py`."""
    diagrams = runpy.run_path(str(DOCS.parent / ".ci" / "diagrams.py"))
    assert set(diagrams["PAGES"]) == {"network.md", "sender.md", "transactions.md"}
    text = page(f"design/{name}")
    assert diagrams["updated"](name, text) == text


def codes_by_module() -> dict[str, set[str]]:
    """Map each module to the codes that it uses as `Code.<NAME>`, except NONE, and without the
    table of codes and the fake cluster."""
    root = DOCS.parent / "aiokprod"
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if name == "_errors.py" or name.startswith("testing/"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in Code.__members__:
                of_code = ast.unparse(node.value).split(".")[-1] == "Code"
                found.setdefault(name, set()).update({node.attr} if of_code else ())
    return {name: codes - {"NONE"} for name, codes in found.items() if codes - {"NONE"}}


def test_error_code_page_lists_every_code_that_is_handled_by_name() -> None:
    documented: dict[str, set[str]] = {}
    module = ""
    for line in section("design/error-codes.md", "Codes that are handled by name").splitlines():
        if line.startswith("| ") and "`" in line:
            name, codes = line.split("|")[1:3]
            module = name.strip().strip("`") or module
            documented.setdefault(module, set()).update(re.findall(r"`(\w+)`", codes))
    assert documented == codes_by_module()


ROW_FIELDS = {field.name for field in dataclasses.fields(ErrorCode)} - {"number", "name", "text"}
NOT_ROWS = {"error", "core.error", "failure", "self"}
"""Exceptions with an attribute that has the name of such a field; `self` except in the class of the
rows."""


def test_error_code_page_has_every_field_of_a_row() -> None:
    text = section("design/error-codes.md", "Fields of a row, and what reads them")
    assert set(first_column(text)) == ROW_FIELDS


def readers_of_rows() -> dict[str, set[str]]:
    """Map each field of a row to the modules that read it, without the fake cluster."""
    root = DOCS.parent / "aiokprod"
    found: dict[str, set[str]] = {name: set() for name in ROW_FIELDS}
    for path in root.rglob("*.py"):
        module = path.relative_to(root).as_posix()
        if module.startswith("testing/"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or node.attr not in ROW_FIELDS:
                continue
            owner = ast.unparse(node.value)
            of_error = owner in NOT_ROWS and not (owner == "self" and module == "_errors.py")
            of_error = of_error or (module, owner) == ("spark/table_handoff.py", "found")
            if isinstance(node.ctx, ast.Load) and id(node) not in called and not of_error:
                found[node.attr].add(module)
    return found


def modules_by_name() -> dict[str, set[str]]:
    """Map each name that a page may use to its modules: the name of a file, with or without
    folders, or of a class or function at the top level."""
    root = DOCS.parent / "aiokprod"
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        module = path.relative_to(root).as_posix()
        if module.startswith("testing/"):
            continue
        names = {path.stem, *(module.split("/", n)[-1] for n in range(module.count("/") + 1))}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                names.add(node.name)
        for name in names:
            found.setdefault(name, set()).add(module)
    return found


def test_error_code_page_has_every_reader_of_a_field() -> None:
    documented: dict[str, set[str]] = {}
    modules = modules_by_name()
    fields: list[str] = []
    text = section("design/error-codes.md", "Fields of a row, and what reads them")
    for line in re.findall(r"^\| .*`.* \|$", text, re.MULTILINE):
        first, second = line.split("|")[1:3]
        fields = re.findall(r"`(\w+)`", first) or fields
        for name in re.findall(r"`([\w./]+)`", second):
            owner = name if name.endswith(".py") else name.split(".")[0]
            (module,) = modules[owner]
            for field in fields:
                documented.setdefault(field, set()).add(module)
    assert documented == readers_of_rows()


def test_design_pages_describe_every_module_of_the_producers_identity() -> None:
    package = DOCS.parent / "aiokprod" / "_engine" / "identity"
    described = page("design/idempotence.md") + page("design/transactions.md")
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    assert modules <= set(re.findall(r"`(\w+\.py)`", described))


def test_design_page_has_terms_that_the_code_uses() -> None:
    terms = (
        (DOCS.parent / "DESIGN.md").read_text("utf-8").split("\n## Terms\n")[1].split("\n## ")[0]
    )
    root = DOCS.parent / "aiokprod"
    sources = [*root.rglob("*.py"), *root.rglob("*.pyx")]
    words = {word for path in sources for word in re.findall(r"\w+", path.read_text("utf-8"))}
    assert set(re.findall(r"`(?:\w+\.)?(\w+)`", terms)) <= words


def test_design_page_has_the_number_of_states_of_a_batch() -> None:
    assert len(BatchState) == 9
    text = (DOCS.parent / "DESIGN.md").read_text("utf-8")
    assert "A batch has nine states, from OPEN to DONE" in text


def test_design_page_says_what_makes_each_transition_of_a_batch() -> None:
    owners = {
        owner.__name__: owner
        for owner in (BatchCompletion, BatchCompressor, RecordAccumulator, Sender)
    }
    documented: set[tuple[BatchState, BatchState]] = set()
    text = section("design/sender.md", "States of a batch")
    for row in re.findall(r"^\| (`.*→.*) \|$", text, re.MULTILINE):
        states, made_by = row.split(" | ")
        before, after = (re.findall(r"`(\w+)`", side) for side in states.split("→"))
        documented |= {(BatchState[one], BatchState[other]) for one in before for other in after}
        for name, method in re.findall(r"`(\w+)\.(\w+)`", made_by):
            assert hasattr(owners[name], method), f"{name}.{method}"
    assert documented == {(one, other) for one, others in TRANSITIONS.items() for other in others}


def test_design_page_says_what_makes_each_transition_of_a_transactional_producer() -> None:
    documented: set[tuple[TxnState, TxnState]] = set()
    text = section("design/transactions.md", "States of the producer")
    for row in re.findall(r"^\| (`.*→.*) \|$", text, re.MULTILINE):
        states, made_by = row.split(" | ")
        before, after = (re.findall(r"`(\w+)`", side) for side in states.split("→"))
        documented |= {(TxnState[one], TxnState[other]) for one in before for other in after}
        for method in re.findall(r"`TransactionManager\.(\w+)`", made_by):
            assert hasattr(TransactionManager, method), method
    assert documented == {
        (one, other) for one, others in TXN_TRANSITIONS.items() for other in others
    }


FLAGS = (
    "maybe_written",
    "possibly_appended",
    "in_doubt",
    "lost",
    "divided_in_doubt",
    "sequence_reset",
    "proven_offset",
)
"""The flags of a batch that describe its attempts."""


def readers_of_flags() -> dict[str, set[str]]:
    """Map each flag of a batch to the methods ("Class.method") and functions that read it."""
    found: dict[str, set[str]] = {flag: set() for flag in FLAGS}

    def visit(node: ast.AST, scope: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                inner = (*scope, child.name)
            elif (
                isinstance(child, ast.Attribute)
                and child.attr in FLAGS
                and isinstance(child.ctx, ast.Load)
                and ast.unparse(child.value) in {"batch", "each", "self.open[0]"}
            ):
                found[child.attr].add(".".join(scope))
            visit(child, inner)

    for path in (DOCS.parent / "aiokprod" / "_engine").rglob("*.py"):
        visit(ast.parse(path.read_text(encoding="utf-8")), ())
    inherits = {"RecordAccumulator.split"}  # not in the column
    return {flag: names - inherits for flag, names in found.items()}


def test_design_page_has_every_reader_of_a_flag() -> None:
    documented: dict[str, set[str]] = {}
    for line in section("design/idempotence.md", "Flags of a batch").splitlines():
        if line.startswith("| `"):
            flag, _, _, read_by = line.strip("| ").split(" | ")
            names = re.findall(r"`([\w.]+)`", read_by)
            documented[flag.strip("`")] = {
                name
                for name in names
                if name not in {"lost", "SequencePolicy.on_failure"}  # only in the explanation
            }
    assert documented == readers_of_flags()


def test_design_pages_have_the_size_of_a_delivery() -> None:
    (size,) = re.findall(
        r"an? (\d+)-byte `Delivery`", (DOCS.parent / "DESIGN.md").read_text("utf-8")
    )
    (charge,) = re.findall(r"plus (\d+) bytes\s+per handle", page("design/core.md"))
    assert int(size) == Delivery.__basicsize__
    assert int(charge) == DELIVERY_CHARGE


def test_numbers_of_the_reliability_page_are_those_of_the_code() -> None:
    from tests.chaos.faults import CATALOGUE
    from tests.detection.bugs import BUGS
    from tests.simulation.exemptions import EXEMPTIONS
    from tests.simulation.seeds import MENU
    from tests.testing.test_detection_power import QUICK

    text = " ".join((DOCS.parent / "RELIABILITY.md").read_text(encoding="utf-8").split())
    assert f"a subset of {len(MENU)} fault types" in text
    assert f"a list of {len(EXEMPTIONS)} exemptions" in text
    assert f"puts {len(BUGS)} bugs back" in text
    assert f"runs the {len(QUICK)} bugs that" in text
    assert f"injects {len(CATALOGUE)} faults" in text


def test_check_page_has_every_finding() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in (DOCS.parent / "aiokprod" / "_client" / "check").glob("*.py")
    )
    codes = set(re.findall(r'Finding\(\s*"(\w+)"', source))
    codes |= set(re.findall(r'\bcode = "(\w+)"', source))
    codes |= set(re.findall(r'code, remedy = "(\w+)"', source))
    assert set(first_column(section("check.md", "What is checked"))) == codes


def test_the_quickstart_prints_what_it_says(tmp_path: Path) -> None:
    text = page("quickstart.md")
    program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1]
    (printed,) = re.findall(r"It prints\n\n```\n(.*?)```", text, re.DOTALL)
    (tmp_path / "hello.py").write_text(program)
    answer = subprocess.run(
        [sys.executable, tmp_path / "hello.py"], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(DOCS.parent)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert re.sub(r"partition \d", "partition 0", answer.stdout) == printed


def test_navigation_of_the_site_has_every_page_once() -> None:
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    script = (DOCS.parent / ".ci" / "docs_site.py").read_text(encoding="utf-8")
    outside = re.findall(r'^    "(.*\.md)",$', script, re.MULTILINE)
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    named = re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", text.split("\nnav:\n")[1], re.MULTILINE)
    assert sorted(named) == sorted(pages + [f"project/{name}" for name in outside])
