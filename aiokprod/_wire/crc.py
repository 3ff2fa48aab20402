"""CRC-32C by the package crc32c.

Its compiled module is loaded without the package around it, which reads its own version from the
metadata of installed packages when it is imported: a fifth of what importing all of ours takes.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, Final


def _load() -> Any:
    package = find_spec("crc32c")
    where = None if package is None else package.submodule_search_locations
    spec = None if where is None else PathFinder.find_spec("crc32c._crc32c", list(where))
    if spec is None or spec.loader is None:  # it is made in another way than version 2.9
        import crc32c

        return crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crc32c: Final[Callable[..., int]] = _load().crc32c
"""`crc32c(data, before=0)`: the checksum of `data` continued from `before`, 0 to 2**32 - 1. `data`
is anything with a contiguous buffer; large ones are read without the GIL. Source: RFC 3720,
appendix B.4."""
