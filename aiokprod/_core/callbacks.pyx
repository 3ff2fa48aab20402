# cython: language_level=3
"""The callbacks of all deliveries of a batch, as one entry in the loop's queue.

A `call_soon` for each would cost as much as the callbacks do. They run in the same pass and order
as with one each.
"""

cdef extern from "Python.h":
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1


cdef class Callbacks:
    """Calls, each in its context. What one raises goes to the loop's exception handler, as with
    `loop.call_soon`."""

    def __init__(self, loop not None):
        self.loop = loop
        self.calls = []

    cdef int add(self, object fn, object context, object argument) except -1:
        self.calls.append(fn)
        self.calls.append(context)
        self.calls.append(argument)
        return 0

    cdef int schedule(self) except -1:
        """Schedule the callbacks for the next pass. Never raises: tasks would not be woken."""
        cdef int _attempt
        if self.next >= len(self.calls):
            return 0
        for _attempt in range(2):  # an interrupted call may have been in time: twice is harmless
            try:
                self.handle = self.loop.call_soon(self)
                return 0
            except BaseException as error:
                self.loop.call_exception_handler({
                    "message": "aiokprod: callbacks of deliveries could not be scheduled",
                    "exception": error,
                })
        return 0

    def __call__(self):
        cdef list calls = self.calls
        cdef object fn, context, argument
        self.handle = None
        if self.next + 3 < len(calls):
            self.schedule()  # the rest stays in the queue: one may run the loop, or end it
        try:
            while self.next < len(calls):
                fn, context, argument = \
                    calls[self.next], calls[self.next + 1], calls[self.next + 2]
                self.next += 3
                try:
                    PyContext_Enter(context)
                    try:
                        fn(argument)
                    finally:
                        PyContext_Exit(context)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    name = getattr(fn, "__qualname__", type(fn).__name__)
                    self.loop.call_exception_handler({
                        "message": f"Exception in callback {name}", "exception": error,
                    })
        finally:
            if self.handle is not None and self.next >= len(calls):
                self.handle.cancel()
