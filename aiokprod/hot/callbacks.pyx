# cython: language_level=3
"""The callbacks of all deliveries of a batch, as one entry in the loop's queue.

A handle of the loop for each would cost as much as the callbacks do; they run in the same pass and
order as if each had one.
"""

cdef extern from "Python.h":
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1


cdef class Callbacks:
    """Calls, each in its context. What one raises goes to the loop's exception handler, as with
    `loop.call_soon`; if the process is to end, the rest is left for the next pass."""

    def __init__(self, loop not None):
        self.loop = loop
        self.calls = []

    cdef int add(self, object fn, object context, object argument) except -1:
        self.calls.append(fn)
        self.calls.append(context)
        self.calls.append(argument)
        return 0

    cdef int schedule(self) except -1:
        if self.next < len(self.calls):
            self.loop.call_soon(self)
        return 0

    def __call__(self):
        cdef list calls = self.calls
        cdef object fn, context
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
                    self.loop.call_exception_handler({
                        "message": f"Exception in callback {fn!r}", "exception": error,
                    })
        finally:  # an exception that ends the process, or a signal's handler
            self.schedule()
