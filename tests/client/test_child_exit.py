"""Tests of `at_exit_of_child_processes`."""

from __future__ import annotations

import sys
import types

import pytest

from aiokprod._client import child_exit


def test_function_is_registered_once_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[object] = []

    def finalize(_: None, function: object, exitpriority: int) -> None:
        assert exitpriority >= 0  # multiprocessing only calls functions with such a priority
        registered.append(function)

    def close() -> None:
        pass

    util = types.SimpleNamespace(Finalize=finalize)
    monkeypatch.delitem(sys.modules, "billiard.util", raising=False)
    monkeypatch.setattr(child_exit, "_registered", set())
    monkeypatch.delitem(sys.modules, "multiprocessing.util", raising=False)
    child_exit.at_exit_of_child_processes(close)
    assert registered == []
    monkeypatch.setitem(sys.modules, "multiprocessing.util", util)
    for pid in (1, 1, 2):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        child_exit.at_exit_of_child_processes(close)
    assert registered == [close, close]
