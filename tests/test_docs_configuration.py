"""The settings tables in docs/configuration.md match the code."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from aiokprod import ConfigError, Producer, ProducerConfig
from aiokprod._config.foreign_names import JAVA

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SCRIPT = runpy.run_path(str(ROOT / ".ci" / "settings_table.py"))
FIELDS = {field.name: field for field in dataclasses.fields(ProducerConfig)}
ROWS = {
    cells[0].strip("` "): cells[1:]
    for line in TEXT.split("<!-- settings -->")[1].split("<!-- end of settings -->")[0].splitlines()
    if line.startswith("| `")
    for cells in [re.split(r"(?<!\\) \| ", line.strip("| "))]
}


def test_tables_are_those_of_the_code() -> None:
    """After a change of the settings, run `python .ci/settings_table.py`."""
    assert SCRIPT["updated"](TEXT) == TEXT


def test_a_default_that_differs_from_the_code_is_written_again() -> None:
    stale = TEXT.replace("| `33554432` |", "| `1` |")
    assert stale != TEXT
    assert SCRIPT["updated"](stale) == TEXT


def test_a_page_without_a_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="markers of the tables of settings"):
        SCRIPT["updated"](TEXT.replace("<!-- end of settings -->", ""))


def test_every_setting_has_a_row_in_the_order_of_the_fields() -> None:
    assert list(ROWS) == list(FIELDS)
    assert all(len(cells) == 6 for cells in ROWS.values())
    assert all(cells[-1] for cells in ROWS.values())


def test_what_the_script_says_of_single_settings_is_about_settings() -> None:
    for table in ("GROUPS", "ONLY_HERE", "OTHER_IN_JAVA", "DEFAULTS", "SIZES", "PAGES"):
        assert set(SCRIPT[table]) <= set(FIELDS), table


def test_names_in_java_are_not_those_that_java_has_under_another_name() -> None:
    named = {cells[0].split("`")[1] for cells in ROWS.values() if cells[0] != "-"}
    assert named.isdisjoint(JAVA)
    assert {"linger.ms", "ssl.keystore.key", "compression.zstd.level"} <= named


def test_defaults_are_accepted_and_values_outside_the_ranges_are_not() -> None:
    for name, (_, _, default, _, values, _) in ROWS.items():
        if default.startswith("`"):
            given: dict[str, Any] = {name: ast.literal_eval(default.strip("`"))}
            config = ProducerConfig(bootstrap_servers="b:1", **given)
            assert getattr(config, name) == given[name]
        low = re.match(r"(-?\d+) (?:or more|to \d+(?!.*UTF-8))(.*)", values)
        if low:
            outside: dict[str, Any] = {name: int(low[1]) - 1 - 2 * bool(low[2])}
            with pytest.raises(ConfigError, match=f"{name}="):
                ProducerConfig(bootstrap_servers="b:1", **outside)


def test_choices_are_the_only_ones() -> None:
    for name, (_, _, _, _, values, _) in ROWS.items():
        choices = re.findall(r'`"([^"]*)"`', values)
        if len(choices) > 1:
            wrong: dict[str, Any] = {name: "no such choice"}
            with pytest.raises(ConfigError, match=name):
                ProducerConfig(bootstrap_servers="b:1", **wrong)


def test_the_first_examples_make_the_same_producer() -> None:
    first = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0]

    async def main() -> list[Producer[Any, Any]]:
        names = {"Producer": Producer, "ProducerConfig": ProducerConfig}
        made = [eval(line, names) for line in first.splitlines()]
        for producer in made:
            await producer.close(0)
        return made

    one, other = asyncio.run(main())
    assert one._config == other._config


def test_the_example_of_topic_profiles_is_a_configuration() -> None:
    (code,) = re.findall(
        r"```python\n(from aiokprod import Producer, TopicProfile.*?)```", TEXT, re.DOTALL
    )

    async def main() -> list[str]:
        names: dict[str, Any] = {}
        *imports, call = ast.parse(code).body
        exec(compile(ast.Module(imports, []), "configuration.md", "exec"), names)
        assert isinstance(call, ast.Expr)
        producer = eval(compile(ast.Expression(call.value), "configuration.md", "eval"), names)
        await producer.close(0)
        return [item[0] for item in producer._config.topic_profiles]

    assert asyncio.run(main()) == ["logs.audit", "logs.*", "orders"]
