"""The check of names reports names that do not exist, and accepts names of other projects."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

CHECK = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "check_names.py"))


@pytest.mark.parametrize(
    "code",
    [
        "_net.dialing",
        "_net.client.NoSuchClient",
        "aiokprod._wire.nothing",
        "wire.record_batch",
        "_net/dialing",
        "tests/test_nothing.py",
    ],
)
def test_a_name_that_does_not_exist_is_found(code: str) -> None:
    assert len(list(CHECK["wrong_names"](f"first line\nsee `{code}`"))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "_net.client.NetworkClient",
        "aiokprod.testing.run",
        "_wire/record_batch",
        "tests/test_layers.py",
        "tests/wire/schemas/<Api>Request.json",
        "loop.time",
        "batch.size",
        "core.record_count",
        "apache/kafka",
    ],
)
def test_a_good_or_foreign_name_is_accepted(code: str) -> None:
    assert not list(CHECK["wrong_names"](f"`{code}`"))


def test_attributes_are_looked_up_in_the_class_and_its_bases() -> None:
    text = '''class A(B):
    """A class.

    Attributes:
        own, inherited: there.
        stale: not there.
    """

    own = 1
'''
    found = CHECK["missing_attributes"](text, {"B": ({"inherited"}, [])})
    assert found == ["1: class A has no attribute stale"]


def test_a_class_name_that_occurs_twice_is_found() -> None:
    package = CHECK["PACKAGE"]
    texts = {
        package / "a.py": "class Batch:\n    pass\n",
        package / "a.pyi": "class Batch: ...\n",
        package / "b.pyx": "\ncdef class _Batch:\n    pass\n",
        package / "_wire" / "messages" / "c.py": "class Batch(Struct):\n    pass\n",
    }
    assert list(CHECK["repeated_classes"](texts)) == [
        "aiokprod/b.pyx:2: aiokprod/a.py:1 has a class Batch too"
    ]
