"""The TypedDict of the settings has the same fields as `ProducerConfig`, and the same choices as
the checks."""

from __future__ import annotations

import dataclasses
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

from aiokprod import ProducerConfig
from aiokprod._config.fields import Choice
from aiokprod._config.settings import Settings

ROOT = Path(__file__).parents[2]


def test_the_file_is_the_generated_one() -> None:
    """To update the file after a change of the fields, run `python .ci/settings_types.py` and then
    `ruff format`."""
    text = runpy.run_path(str(ROOT / ".ci" / "settings_types.py"))["generated"]()
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", "settings.py", "-"],
        input=text,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (ROOT / "aiokprod" / "_config" / "settings.py").read_text("utf-8")


def test_every_field_is_there_and_only_the_servers_are_required() -> None:
    fields = {field.name for field in dataclasses.fields(ProducerConfig)}
    assert Settings.__required_keys__ | Settings.__optional_keys__ == fields
    assert Settings.__required_keys__ == {"bootstrap_servers"}


def test_choices_are_those_of_the_checks() -> None:
    hints = get_type_hints(Settings)
    for field in dataclasses.fields(ProducerConfig):
        check = field.metadata["check"]
        if isinstance(check, Choice):
            found = {
                name
                for kind in (hints[field.name], *get_args(hints[field.name]))
                for name in get_args(kind)
                if isinstance(name, str)
            }
            assert found == set(check.names), field.name
