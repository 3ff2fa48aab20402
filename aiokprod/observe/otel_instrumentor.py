"""`AiokprodInstrumentor` adds a `Telemetry` to every new producer, without changes to the program.

The class is the entry point `aiokprod` of the group `opentelemetry_instrumentor`, so the command
`opentelemetry-instrument` finds it. Needs the extra `otel`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any, ClassVar

try:
    from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
        BaseInstrumentor,
    )
except ImportError as error:
    raise ImportError(
        "aiokprod.observe.otel_instrumentor needs the package opentelemetry-instrumentation: "
        "pip install 'aiokprod[otel]'"
    ) from error

from aiokprod.observe.otel import Telemetry
from aiokprod.producer import Producer

__all__ = ["AiokprodInstrumentor"]


class AiokprodInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments aiokprod.

    `instrument()` accepts arguments of `Telemetry`: tracer_provider, meter_provider, propagator,
    spans and key_attribute. It applies to producers that are created until `uninstrument()` is
    called. Producers that already have a `Telemetry` are not changed.
    """

    # This is a list, because a function would become a method. The base class is a singleton.
    _originals: ClassVar[list[Callable[..., None]]] = []

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no dependencies: no other package is instrumented, and aiokprod is installed."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        names = ("tracer_provider", "meter_provider", "propagator", "spans", "key_attribute")
        options = {name: kwargs[name] for name in names if name in kwargs}
        original = Producer.__init__

        @functools.wraps(original)
        def instrumented(producer: Any, *args: Any, plugins: Any = (), **settings: Any) -> None:
            if isinstance(plugins, Iterable):  # the producer rejects anything else
                plugins = list(plugins)
                if not any(isinstance(one, Telemetry) for one in plugins):
                    plugins.append(Telemetry(**options))
            original(producer, *args, plugins=plugins, **settings)

        self._originals.append(original)
        Producer.__init__ = instrumented  # type: ignore[method-assign, assignment]

    def _uninstrument(self, **kwargs: Any) -> None:
        if self._originals:
            Producer.__init__ = self._originals.pop()  # type: ignore[method-assign]
