"""Loads the shipped plugin (header with the kind of build, cluster fixtures) and the canary."""

pytest_plugins = ("aiokprod.testing.pytest_plugin", "tests.secret_leak_check")
