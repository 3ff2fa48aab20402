"""Masks secrets in the tracebacks that Spark writes.

With SPARK_TRACEBACK_WITH_LOCALS=1, Spark 4.3 prints the local variables of every frame of a failing
planner or worker. A mapping that masks its values is not enough: Spark's own functions read the
options one by one, so that the last option remains in a local variable, and they keep all options
in a dict. These values can only be masked in the frames themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections import UserDict
from typing import TYPE_CHECKING, Any, Final

from aiokprod.spark.options import MASK, is_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

_PLAIN: Final = frozenset({"", "true", "false"})
"""Values that are not secrets, even in options with unknown names."""
_FRAMES: Final = 32
"""Number of calling frames to mask. Spark's planner is only a few frames away."""


@contextlib.contextmanager
def redacted(options: Mapping[str, str]) -> Iterator[None]:
    """If the body raises, mask the secrets of `options` in the local variables of the functions
    that the body called and of its callers."""
    try:
        yield
    except GeneratorExit:
        raise  # closing a reader early is not a failure
    except BaseException as error:
        secrets = {value for key, value in options.items() if is_secret(key, value)} - _PLAIN
        for below in _frames_below(error):
            _mask_frame(below, secrets)
        frame: FrameType | None = sys._getframe(2)
        for _ in range(_FRAMES):
            if frame is None:
                break
            _mask_frame(frame, secrets)
            frame = frame.f_back
        raise


def _frames_below(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames in the tracebacks of the error, its causes and its contexts."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        chain += [one.__cause__, one.__context__]
        traceback = one.__traceback__
        while traceback is not None:
            yield traceback.tb_frame
            traceback = traceback.tb_next


def _mask_frame(frame: FrameType, secrets: set[str]) -> None:
    found: dict[str, Any] = frame.f_locals
    changed = False
    for name, value in list(found.items()):
        if isinstance(value, str) and value in secrets:
            found[name] = MASK
            changed = True
        elif isinstance(value, UserDict):  # such as Spark's CaseInsensitiveDict
            _mask_dict(value.data, secrets)
        elif type(value) is dict and value is not found:
            _mask_dict(value, secrets)
    if changed and sys.version_info < (3, 13):  # later, f_locals writes through (PEP 667)
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _mask_dict(values: dict[Any, Any], secrets: set[str]) -> None:
    for key, value in list(values.items()):
        if isinstance(value, str) and value in secrets:
            values[key] = MASK
