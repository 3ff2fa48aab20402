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
            "aiokprod._core"
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


def in_a_new_process(*code: str) -> None:
    """Run these lines in a new process; they contain asserts."""
    subprocess.run([sys.executable, "-c", "\n".join(code)], check=True)


def test_import_starts_nothing_and_pulls_in_no_extra() -> None:
    """The import starts no thread. It loads neither test tools nor optional packages, nor modules
    that are slow to import and rarely needed: codecs, the metadata of installed packages."""
    in_a_new_process(
        "import sys, threading, aiokprod",
        "assert threading.active_count() == 1",
        "heavy = {'pytest', 'confluent_kafka', 'pyspark', 'cramjam', 'aiokprod.testing',",
        "         'prometheus_client', 'opentelemetry', 'aiokprod.observe',",
        "         'fastavro', 'jsonschema', 'cloudevents', 'aiokprod.serdes',",
        "         'lz4', 'zstandard', 'crc32c', 'importlib.metadata'}",
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)",
    )


def test_library_of_a_codec_is_imported_with_the_producer() -> None:
    """The library is not imported while the loop runs."""
    in_a_new_process(
        "import sys",
        "from aiokprod import Producer",
        "Producer(bootstrap_servers='b:1', compression_type='zstd')",
        "assert 'zstandard' in sys.modules",
    )


def test_package_of_the_checksum_can_still_be_imported() -> None:
    """Only one module of the package was loaded."""
    in_a_new_process(
        "from aiokprod._wire.crc import crc32c as ours",
        "import crc32c",
        "assert crc32c.crc32c(b'aiokprod') == ours(b'aiokprod')",
    )
