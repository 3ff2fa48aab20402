"""Loads the shipped pytest plugin: header with the kind of build, cluster fixtures."""

pytest_plugins = ("aiokprod.testing.pytest_plugin",)
