# cython: language_level=3
"""`WakeupEvent`: an event that is cheap to set and whose wait has a deadline.

The class is compiled so that no wake-up is lost. A signal handler may raise between any two steps
of Python code, even within `Future.set_result`; the future would then be done without its waiter
being scheduled. In this class, only calls of the event loop run Python code. If such a call is
interrupted, the next `set` repeats it.
"""

from asyncio import CancelledError, sleep

from libc.math cimport INFINITY


cdef class WakeupEvent:
    """Supports one waiter and any number of setters. A `set` before the wait is remembered.

    `asyncio.Event` with `wait_for` would create a task or a timeout context per wait; this class
    creates no objects.

    Args:
        keep_timer: reuse the timer of a wait that ends early. No timer is then created or cancelled
            while events occur before the deadlines. Call `close` at the end.

    Attributes:
        due_at: loop time at which the last wait that suspended was due to end: the time of the
            event, or the deadline. 0 at first; the waiter may reset it to 0.
    """

    cdef object loop
    cdef bint keep_timer
    cdef bint flag
    cdef public double due_at
    cdef double deadline    # of the current wait; INFINITY without a wait
    cdef object timer
    cdef double timer_at
    # The callback of the waiting task, as in a future; None without a waiter.
    cdef object waiter
    cdef object context
    cdef bint scheduled     # `deliver` is in the loop's queue
    cdef bint begun         # the task has begun to wait
    cdef bint is_cancelled
    cdef public bint _asyncio_future_blocking

    def __cinit__(self, loop not None, *, bint keep_timer=False):
        self.loop = loop
        self.keep_timer = keep_timer
        self.deadline = self.timer_at = INFINITY

    def set(self):
        """Wake the waiter in the next iteration of the event loop. Idempotent and cheap."""
        self.flag = True
        self.schedule()

    def clear(self):
        """Forget earlier calls of `set`. Call this before inspecting state, never after."""
        self.flag = False

    async def wait(self, double deadline):
        """Return when the event is set, or at `deadline` (loop time; inf means no deadline).

        Cancellation: only the wait ends.
        """
        if self.flag:
            await sleep(0)
            return
        self.deadline = deadline
        if deadline < self.timer_at:
            self.arm(deadline)
        try:
            await self
        finally:
            self.waiter = self.context = None
            self.deadline = INFINITY
            if not self.keep_timer:
                self.close()

    def close(self):
        """Cancel the timer. Call this after the last wait."""
        timer, self.timer = self.timer, None
        self.timer_at = INFINITY
        if timer is not None:
            timer.cancel()

    cdef int schedule(self) except -1:
        if self.waiter is not None and not self.scheduled:
            self.due_at = self.loop.time()
            self.loop.call_soon(self.deliver, context=self.context)
            self.scheduled = True  # set last: if the call raises, the next `set` repeats it
        return 0

    def deliver(self):
        """Callback of the loop: run the waiting task."""
        waiter, self.waiter = self.waiter, None
        self.scheduled = False
        if waiter is not None:
            waiter(self)

    cdef int arm(self, double when) except -1:
        self.close()
        self.timer = self.loop.call_at(when, self.ring)
        self.timer_at = when
        return 0

    def ring(self):
        """Callback of the timer: end the wait, or restart the timer if the deadline is later."""
        cdef double due = self.timer_at
        self.timer = None
        self.timer_at = INFINITY
        try:
            self.end_wait(due)
        except BaseException:
            self.end_wait(due)  # otherwise the waiter would sleep past its deadline
            raise

    cdef int end_wait(self, double due) except -1:
        if self.deadline <= due:
            self.set()
            self.due_at = self.deadline
        elif self.deadline < INFINITY:
            self.arm(self.deadline)
        return 0

    # -- future interface, used by tasks ---------------------------------------------------------

    def __await__(self):
        self.begun = self.is_cancelled = False
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if self.begun:
            raise StopIteration
        self.begun = self._asyncio_future_blocking = True
        return self

    def get_loop(self):
        return self.loop

    def add_done_callback(self, fn, *, context=None):
        self.waiter = fn
        self.context = context

    def cancel(self, msg=None):
        if self.waiter is None:
            return False
        self.is_cancelled = True
        self.schedule()
        return True

    def result(self):
        """Called by the task when it resumes."""
        if self.is_cancelled:
            self.is_cancelled = False
            raise CancelledError
        return None
