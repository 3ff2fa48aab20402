# cython: language_level=3
"""Timeouts of `send(timeout=...)`: records with similar deadlines share a timer.

A loop timer for each record, which is cancelled when the record has its outcome, would cost more
than the record. Therefore deadlines are rounded up to a multiple of a step, and all records with
the same rounded deadline share a timer. The step is a power of two of at most 1/128 of the timeout,
so a wait ends at most 0.8 % of its timeout late and never early. Records with an outcome are
removed whenever the number of stored records has doubled.
"""

from libc.math cimport INFINITY, ceil, frexp, ldexp

from aiokprod._core.batch cimport Delivery

cdef enum:
    STEPS_LOG2 = 8             # a timeout has between 128 and 256 steps
    LEAST_LOG2 = -30           # a step has at least 2**-30 s, because deadlines are divided by it
    CHECKED_ABOVE = 1 << 30    # seconds; a larger int may be too large for a float
    FEWEST = 64                # handles of a timer before the first removal
    SLICE = 1024               # most records that expire in one iteration of the event loop


cdef class _Timer:
    """The deliveries whose waits end at `time`."""
    cdef Deadlines owner
    cdef double time
    cdef list deliveries
    cdef Py_ssize_t limit      # length of `deliveries` at which completed deliveries are removed
    cdef Py_ssize_t next       # index of the next delivery to expire
    cdef object handle

    cdef int add(self, Delivery delivery) except -1:
        cdef Delivery each
        if len(self.deliveries) >= self.limit:
            self.deliveries = [each for each in self.deliveries if not each.is_done()]
            self.limit = max(FEWEST, 2 * len(self.deliveries))
        self.deliveries.append(delivery)
        return 0

    def __call__(self):
        """End the waits. If a signal handler raises, the other waits end in the next iteration."""
        cdef Delivery delivery
        cdef Py_ssize_t stop
        if self.owner is None:  # created without `Deadlines`
            return
        self.handle = None  # breaks the reference cycle
        self.owner.forget(self)
        stop = min(self.next + SLICE, <Py_ssize_t>len(self.deliveries))
        try:
            while self.next < stop:
                delivery = self.deliveries[self.next]
                self.next += 1
                delivery.expire()
        finally:
            if self.next < <Py_ssize_t>len(self.deliveries):
                self.handle = self.owner.loop.call_soon(self)
            else:
                self.deliveries = []


cdef class Deadlines:
    """The timers of one producer.

    Args:
        check: raises an error for an invalid timeout.
    """

    cdef object loop
    cdef object clock
    cdef object check
    cdef dict timers
    cdef _Timer latest

    def __cinit__(self, loop not None, check not None):
        self.loop = loop
        self.clock = loop.time
        self.check = check
        self.timers = {}

    def begin(self, timeout):
        """Return the deadline of a call that begins now, as a time of the loop's clock."""
        if not ((type(timeout) is float and timeout > 0)
                or (type(timeout) is int and 0 < timeout <= CHECKED_ABOVE)):
            self.check(timeout)
        return <double>self.clock() + <double>timeout

    @property
    def timer_count(self):
        """Number of timers that have not fired."""
        return len(self.timers)

    def watch(self, Delivery delivery not None, double deadline, double timeout):
        """End the wait for a record at its deadline. If possible, the record is then withdrawn;
        otherwise only the wait ends. The waiting task receives `WaitExpired`."""
        cdef int exponent
        cdef double step, time
        cdef _Timer timer = self.latest
        if not 0 < timeout < INFINITY:
            return
        frexp(timeout, &exponent)
        step = ldexp(1.0, max(exponent - STEPS_LOG2, LEAST_LOG2))
        time = ceil(deadline / step) * step
        if timer is None or timer.time != time:
            timer = self.timers.get(time)
            if timer is None:
                timer = self.start(time)
            self.latest = timer
        timer.add(delivery)

    cdef _Timer start(self, double time):
        cdef _Timer timer = _Timer.__new__(_Timer)
        timer.owner = self
        timer.time = time
        timer.deliveries = []
        timer.limit = FEWEST
        timer.handle = self.loop.call_at(time, timer)
        self.timers[time] = timer
        return timer

    cdef int forget(self, _Timer timer) except -1:
        if self.latest is timer:
            self.latest = None
        if self.timers.get(timer.time) is timer:
            del self.timers[timer.time]
        return 0

    def close(self):
        """Cancel all timers, because every record has its outcome."""
        cdef _Timer timer
        self.latest = None
        while self.timers:
            _, timer = self.timers.popitem()
            timer.handle.cancel()
