"""CRC-32C, computed by the package crc32c.

Only the package's compiled module is loaded. Importing the package itself would also read its
version from the metadata of installed packages, which takes a fifth of aiokprod's import time.
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
    if spec is None or spec.loader is None:  # not the package layout of version 2.9
        import crc32c

        return crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crc32c: Final[Callable[..., int]] = _load().crc32c
"""`crc32c(data, before=0)` returns the checksum of `data`, 0 to 2**32 - 1. `before` is the checksum
of the bytes before `data`. `data` is any object with a contiguous buffer; the GIL is released for
large buffers. Source: RFC 3720, appendix B.4."""
