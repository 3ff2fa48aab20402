"""The public names: complete, sorted, documented."""

from __future__ import annotations

import inspect
import subprocess
import sys

import aiokprod


def test_exports_all_exist_and_are_sorted() -> None:
    assert list(aiokprod.__all__) == sorted(
        aiokprod.__all__, key=lambda name: (not name.isupper(), name.startswith("__"), name)
    )
    for name in aiokprod.__all__:
        assert hasattr(aiokprod, name), name


def test_exports_every_class_and_its_public_methods_have_docstrings() -> None:
    for name in aiokprod.__all__:
        member = getattr(aiokprod, name)
        if not inspect.isclass(member):
            continue
        assert inspect.getdoc(member), name
        if not member.__module__.startswith("aiokprod") or member.__module__.startswith(
            "aiokprod.hot"
        ):
            continue
        for attribute, value in vars(member).items():
            if not attribute.startswith("_") and inspect.isfunction(value):
                assert inspect.getdoc(getattr(member, attribute)), f"{name}.{attribute}"


def test_exports_errors_are_kafka_errors_and_all_are_exported() -> None:
    from aiokprod import errors

    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.KafkaError)
    }
    assert classes <= set(aiokprod.__all__)


def test_import_starts_nothing_and_pulls_in_no_extra() -> None:
    """Importing opens no thread and loads neither test tools nor optional packages."""
    code = (
        "import sys, threading, aiokprod\n"
        "assert threading.active_count() == 1\n"
        "heavy = {'pytest', 'confluent_kafka', 'pyspark', 'cramjam', 'aiokprod.testing'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
