"""Extension types that are created without their constructors are rejected, or safe in every
method."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import aiokprod
from aiokprod._core.batch import RecordMetadata

MODULES = [
    "_arrow.c_data", "_arrow.table_appender", "_compat.per_record",
    "_core.append", "_core.batch", "_core.bulk_append",
    "_core.bulk_tracker", "_core.callbacks", "_core.deadlines", "_core.hooks", "_core.memory",
    "_core.record_fields", "_core.serialization", "_core.slots", "_core.yielding",
    "_engine.wakeup", "_histogram", "_wire.decoders", "_wire.encoders", "spark._readback",
]  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("module", MODULES)
def test_object_made_by_new_alone_crashes_in_no_method(module: str) -> None:
    """The test runs in a separate process, because a failure is a segmentation fault."""
    script = f"""
        import asyncio, faulthandler, importlib, inspect
        faulthandler.enable()
        module = importlib.import_module("aiokprod.{module}")

        class Loop:
            def time(self): return 0.0
            def call_soon(self, *a, **k): pass
            def is_running(self): return True
            def create_future(self): return None
            def call_exception_handler(self, context): pass

        ARGUMENTS = ((), (1,), (b"x",), ("t", b"v"), (None,), ([],), (0, 0), ("t", 0, b"v"))
        for name, kind in sorted(vars(module).items()):
            if not inspect.isclass(kind) or kind.__module__ != module.__name__:
                continue
            def derived():
                return type("Own", (kind,), {{"__init__": lambda self: None}})()
            for make in (lambda: kind.__new__(kind), derived):
                try:
                    made = make()
                except TypeError:
                    continue
                for attribute in dir(kind):
                    if attribute in ("__class__", "__init_subclass__", "__new__"):
                        continue
                    print(name, attribute, flush=True)
                    try:
                        found = getattr(made, attribute)
                    except Exception:
                        continue
                    if callable(found):
                        for arguments in ARGUMENTS:
                            try:
                                result = found(*arguments)
                                if inspect.isawaitable(result) and hasattr(result, "close"):
                                    result.close()
                            except BaseException:
                                pass
                try:
                    made.enabled = True
                    made.submit("t", b"v")
                except BaseException:
                    pass
                del made
        print("fine")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.endswith("fine\n"), done.stdout[-300:] + done.stderr[-1500:]


def test_list_of_modules_is_complete() -> None:
    package = Path(aiokprod.__file__).parent
    found = [path.relative_to(package).with_suffix("") for path in package.rglob("*.pyx")]
    assert sorted(".".join(path.parts) for path in found) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_only_metadata_can_be_pickled_or_copied(module: str) -> None:
    found = vars(importlib.import_module(f"aiokprod.{module}")).values()
    kinds = [kind for kind in found if inspect.isclass(kind) and kind.__module__.endswith(module)]
    for kind in kinds:
        if issubclass(kind, BaseException) or kind is RecordMetadata:
            continue
        for name in ("__reduce_cython__", "__setstate_cython__"):
            assert not hasattr(kind, name), kind
        try:
            made = kind.__new__(kind)
        except TypeError:
            continue
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match="pickle"):
                pickle.dumps(made, protocol)
        with pytest.raises(TypeError, match="pickle"):
            copy.copy(made)
