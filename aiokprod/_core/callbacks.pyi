from collections.abc import Callable
from typing import Any

def mark_as_coroutine_function(function: Callable[..., Any]) -> None: ...
