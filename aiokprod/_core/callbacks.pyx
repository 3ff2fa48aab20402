# cython: language_level=3
"""Runs the callbacks of deliveries in their contexts, with one `loop.call_soon` per batch.

A `call_soon` for each callback would cost as much as the callback itself. The callbacks run in the
same iteration of the event loop, and in the same order, as with separate calls.

Each callback runs in a separate copy of the context in which it was registered, as with
`loop.call_soon`. Most callbacks of a batch are registered in equal contexts and do not change their
context. Therefore copies are shared in two places:

- At registration (`present_context`), callbacks whose contexts have the same content share a copy.
  This copy is never entered, so its content does not change.
- When callbacks run (`Callbacks.run`), they share a copy of that context until one of them changes
  it. The next callback gets a new copy.

The content of a context is one immutable mapping (PEP 567), which is replaced when a variable is
set. So two contexts are equal if they contain the identical mapping. The type's `tp_traverse` finds
the mapping; if it visits anything other than one mapping, no context is shared.
"""

from functools import partial
from inspect import CO_COROUTINE, iscoroutinefunction
from types import CodeType

from cpython.ref cimport PyObject, Py_DECREF

cdef extern from *:
    """
    static int aiokprod_visit_vars(PyObject *visited, void *found)
    {
        PyObject **vars = (PyObject **)found;
        if (visited == NULL || PyContext_CheckExact(visited)) {  /* the previous context */
            return 0;
        }
        if (*vars != NULL) {
            return 1;  /* two objects: an unknown layout */
        }
        *vars = visited;
        return 0;
    }

    /* Return the mapping of a context as a borrowed reference that is only compared, or NULL. */
    static PyObject *aiokprod_vars_of(PyObject *context)
    {
        PyObject *vars = NULL;
        if (Py_TYPE(context)->tp_traverse(context, aiokprod_visit_vars, &vars) != 0) {
            return NULL;
        }
        return vars;
    }

    static int aiokprod_failed(void)
    {
        return -1;
    }
    """
    PyObject* vars_of "aiokprod_vars_of"(object context) noexcept
    int failed "aiokprod_failed"() except -1

cdef extern from "Python.h":
    ctypedef struct PyCodeObject:
        int co_flags
    object PyContext_CopyCurrent()
    object PyContext_Copy(object)
    int PyContext_Enter(object) noexcept  # -1 with an exception set on failure
    int PyContext_Exit(object) except -1
    bint PyFunction_Check(object)
    bint PyMethod_Check(object)
    bint PyCFunction_Check(object)
    PyObject* PyFunction_GetCode(object)
    PyObject* PyObject_Vectorcall(PyObject*, PyObject**, size_t, PyObject*)

cdef int _coroutine_flag = CO_COROUTINE


cpdef bint is_plain_callable(object fn) except -1:
    """Return True for a callable that is not an `async def` function, whose coroutine would never
    run. Methods, partial objects and `__call__` are also checked."""
    if isinstance(fn, OutcomeReceiver):
        return True
    while type(fn) is partial:
        fn = fn.func
    if PyMethod_Check(fn):
        fn = fn.__func__
    if PyFunction_Check(fn):
        return not (<PyCodeObject*>PyFunction_GetCode(fn)).co_flags & _coroutine_flag
    if PyCFunction_Check(fn):
        return True
    return (callable(fn) and not iscoroutinefunction(fn)
            and not iscoroutinefunction(type(fn).__call__))


def mark_as_coroutine_function(function not None):
    """Make `inspect.iscoroutinefunction` return True for a compiled function.

    For Python 3.11, which reads the flag of the function's code object. Python 3.12 has
    `inspect.markcoroutinefunction`.
    """
    cdef object code = function.__code__
    if type(code) is not CodeType:
        raise TypeError(f"{function!r} has no code object")
    (<PyCodeObject*><PyObject*>code).co_flags |= _coroutine_flag


cdef object present_context(object known):
    """Return `known` if its content equals that of the current context, else a copy of the current
    context."""
    cdef object context = PyContext_CopyCurrent()
    cdef PyObject* content = vars_of(context)
    if known is not None and content is not NULL and vars_of(known) is content:
        return known
    return context


cdef class OutcomeReceiver:
    """Base class of this package's own `on_delivery` callbacks. They are called from C and without
    a context, because they call no application code."""

    cdef int receive(self, object metadata, object error) except -1:
        """Handle the outcome of the record; one of the arguments is None."""
        return 0

    def __call__(self, metadata, error):
        self.receive(metadata, error)


cdef class Callbacks:
    """Runs calls in their contexts. Exceptions are passed to the loop's exception handler, as with
    `loop.call_soon`.

    Derived classes store the calls. Their `take` removes the next call and stores it in `fn`,
    `context`, `first` and, for two arguments, `second`.
    """

    def __init__(self, loop not None):
        self.loop = loop

    cdef bint pending(self) except -1:
        """Return False if no call is left."""
        return False

    cdef bint several(self) except -1:
        """Return False if at most one call is left."""
        return False

    cdef bint take(self) except -1:
        return False

    cdef int schedule(self) except -1:
        """Schedule the callbacks for the next iteration. Never raises, because an exception would
        leave waiting tasks asleep."""
        cdef int _attempt
        if not self.pending():
            return 0
        for _attempt in range(2):  # retry an interrupted `call_soon`; a second entry is harmless
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
        self.handle = None
        if self.several():
            # Schedule the other callbacks first, because the next callback may run the loop again
            # or raise KeyboardInterrupt.
            self.schedule()
        try:
            while True:
                try:
                    self.run()
                    break
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    fn, self.failed = self.failed, None
                    name = getattr(fn, "__qualname__", type(fn).__name__)
                    self.loop.call_exception_handler({
                        "message": f"Exception in callback {name}", "exception": error,
                    })
        finally:
            if self.handle is not None and not self.pending():
                self.handle.cancel()

    cdef int run(self) except -1:
        """Run the calls until one fails or none is left."""
        cdef object fn, context, first, second
        cdef object shared = None, own = None
        cdef PyObject* content = NULL
        cdef PyObject* result
        cdef PyObject* arguments[2]
        cdef size_t count
        while self.take():
            # Copy the call to local variables, because the callback may run the loop, which then
            # makes the next call.
            fn, context, first, second = self.fn, self.context, self.first, self.second
            self.fn = self.context = self.first = self.second = None
            if isinstance(fn, OutcomeReceiver):
                self.failed = fn  # in case it raises
                (<OutcomeReceiver>fn).receive(first, second)
                self.failed = None
                continue
            count = 2 if self.has_second else 1
            if not self.context_is_shared:
                own = context
                shared = None
            elif context is not shared or content is NULL or vars_of(own) is not content:
                own = PyContext_Copy(context)
                shared = context
                content = vars_of(own)
            arguments[0] = <PyObject*>first
            arguments[1] = <PyObject*>second
            result = NULL
            if PyContext_Enter(own) == 0:  # fails if the given context is already entered
                result = PyObject_Vectorcall(<PyObject*>fn, arguments, count, NULL)
                PyContext_Exit(own)
            if result is NULL:
                self.failed = fn
                failed()
            Py_DECREF(<object>result)
        return 0
