"""Imports packages that are installed as extras."""

from __future__ import annotations

import importlib
from typing import Any

from aiokprod.errors import ConfigError


def extra(module: str, package: str, name: str, user: str) -> Any:
    """Import a module of an extra.

    Args:
        package: the package that contains the module.
        name: the name of the extra; "" if the package is in no extra.
        user: the class or function that needs the package, for the error.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        missing = package
    install = f"pip install 'aiokprod[{name}]'" if name else f"pip install {missing}"
    raise ConfigError(f"{user} needs the package {missing}: {install}")
