"""Extension types made without their constructors are refused, or harmless in every method."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap

import pytest

from aiokprod.hot.core import Reservation

MODULES = [
    "append", "arrow", "bulk", "callbacks", "core", "decoders", "encoders", "histogram",
    "readback", "table", "turns", "wakeup",
]  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("module", MODULES)
def test_object_made_by_new_alone_crashes_in_no_method(module: str) -> None:
    """In a process of its own: the failure would be a segmentation fault."""
    script = f"""
        import asyncio, faulthandler, importlib, inspect
        faulthandler.enable()
        module = importlib.import_module("aiokprod.hot.{module}")

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


def test_reservation_is_never_without_a_budget() -> None:
    """Its methods would write past the end of None, without a crash."""

    class Own(Reservation):
        def __init__(self) -> None: ...

    with pytest.raises(TypeError):
        Reservation.__new__(Reservation)
    with pytest.raises(TypeError):
        Own()
    with pytest.raises(TypeError):
        Reservation(None)  # type: ignore[arg-type]


def test_list_of_modules_is_complete() -> None:
    import pkgutil

    import aiokprod.hot

    assert sorted(m.name for m in pkgutil.iter_modules(aiokprod.hot.__path__)) == MODULES
    assert inspect.ismodule(aiokprod.hot)
