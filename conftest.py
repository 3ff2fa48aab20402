"""Loads the pytest plugins of the tests, and excludes the collected tests from garbage collection.

The plugins provide the fixtures of clusters, a report header with the kind of build, and a check
that no secret is leaked.
"""

import gc

pytest_plugins = (
    "aiokprod.testing.pytest_plugin",
    "pytest_aiokprod",
    "pytester",
    "tests.secret_leak_check",
)


def pytest_collection_finish() -> None:
    """Exclude the collected tests and their modules from garbage collections.

    Otherwise garbage collections would take more than half of the time of a run, because pytest
    keeps 13,000 test items in memory.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Unfreeze the objects, so that the interpreter can collect them when it exits."""
    gc.unfreeze()
