from cpython.ref cimport PyObject

from aiokprod._core.memory cimport MemoryBudget

cdef enum:
    CHECK_EVERY = 64       # records between two reads of the clock
    RESUMED_RECORDS = 256  # records of a resumed task without a check: less than 0.1 ms
    FREE_RECORDS = 2       # consecutive records after the time slice until a task has to wait


cdef class YieldQueue:
    # -- current iteration of the event loop
    cdef bint pass_open        # a record was appended in this iteration
    cdef bint overrun          # the time slice of this iteration has expired
    cdef double slice_start
    cdef double slice_length
    cdef int since_check       # records since the clock was read
    cdef int allowance         # records that the resumed task may append without a check
    cdef int streak            # consecutive records of `last_task` after the time slice
    cdef PyObject* last_task   # only compared, never dereferenced
    # -- waiting tasks
    cdef object line
    cdef Py_ssize_t group
    cdef Py_ssize_t least
    cdef double began
    cdef bint scheduled
    # -- environment
    cdef object loop
    cdef object is_running
    cdef object clock
    cdef bint is_monotonic     # `clock` is the loop's real clock, not a test's
    cdef object stopwatch
    cdef MemoryBudget memory

    cdef int open_pass(self) except -1
    cdef double now(self) except? -1
    cdef bint slice_over(self) except -1
    cdef bint must_yield(self) except -1
    cdef int check_slice(self) except -1
    cdef bint is_greedy(self) except -1
    cdef bint read_clock(self) except -1
    cdef int schedule(self) except -1
    cdef int resize(self) except -1
    cdef int resume_group(self) except -1

    cdef inline bint check_due(self) noexcept:
        """Count a record. Return True if `must_yield` has to decide about the task that appended
        it."""
        self.since_check += 1
        return self.since_check >= CHECK_EVERY or self.overrun

    cdef inline bint must_wait(self) except -1:
        """Return True if a task that has to yield (`must_yield`) still has to when it awaits."""
        return self.pass_open and (self.overrun or self.line)

    cdef inline void resumed(self) noexcept:
        """Allow the running task, which has waited, to append `RESUMED_RECORDS` records before the
        next check."""
        self.since_check = CHECK_EVERY - RESUMED_RECORDS
        self.allowance = RESUMED_RECORDS
