"""The pytest plugin: says in the header which build is under test and offers cluster fixtures.

Load it with `pytest_plugins = ("aiokprod.testing.pytest_plugin",)` in the top-level conftest.
It imports nothing of the package at import time, so that coverage sees the package load.
"""

from __future__ import annotations

import platform

import pytest


def pytest_report_header(config: pytest.Config) -> str:
    """One line: version, compiled or not, interpreter."""
    import aiokprod

    version = getattr(aiokprod, "__version__", "unknown")
    compiled = getattr(aiokprod, "COMPILED", None)
    return (
        f"aiokprod: {version}, COMPILED={compiled}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )
