"""Loads the shipped plugin (header with the kind of build, cluster fixtures) and the canary, and
keeps the garbage collector away from what pytest has loaded."""

import gc

pytest_plugins = (
    "aiokprod.testing.pytest_plugin",
    "pytest_aiokprod",
    "pytester",
    "tests.secret_leak_check",
)


def pytest_collection_finish() -> None:
    """Exclude the collected tests and their modules from garbage collections.

    With 13,000 test items in memory, the collections of the tests would take more than half of the
    time of a run.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter collect everything at its end."""
    gc.unfreeze()
