# cython: boundscheck=False, wraparound=False, cdivision=True
"""A histogram for the measures taken with every request."""

from libc.math cimport frexp, ldexp
from libc.stdint cimport int64_t
from libc.string cimport memset

# Buckets run from 2**-40 (a picosecond) to 2**60; what lies outside counts in the outermost ones.
cdef int LOWEST = -40
cdef int BUCKETS = 809  # number 0 is for zero, then eight for each power of two


cdef class Histogram:
    """Counts values in buckets that grow by an eighth: quantiles are about 6 % exact.

    Takes 6 KiB, however many values there are.

    Attributes:
        count, total, maximum: of the values added; negative ones count as 0.
    """

    cdef readonly int64_t count
    cdef readonly double total
    cdef readonly double maximum
    cdef int64_t[809] buckets

    def __cinit__(self):
        memset(self.buckets, 0, sizeof(self.buckets))

    def add(self, double value):
        """Count a value. O(1)."""
        cdef int exponent
        cdef int bucket = 0
        cdef double mantissa
        if value > 0.0:
            mantissa = frexp(min(value, 1e18), &exponent)  # 0.5 <= mantissa < 1
            bucket = 1 + (exponent - LOWEST) * 8 + <int> (mantissa * 16) - 8
            bucket = min(max(bucket, 1), BUCKETS - 1)
        else:
            value = 0.0  # not a number counts as 0, too
        self.count += 1
        self.total += value
        self.maximum = max(self.maximum, value)
        self.buckets[bucket] += 1

    def quantile(self, double q):
        """The middle of the bucket that holds the q-quantile (0 to 1); 0.0 without values."""
        cdef double left = q * self.count
        cdef int bucket
        for bucket in range(BUCKETS):
            left -= self.buckets[bucket]
            if left <= 0 and self.buckets[bucket]:
                return min(self.middle(bucket), self.maximum)
        return self.maximum

    cdef double middle(self, int bucket):
        if bucket == 0:
            return 0.0
        bucket -= 1
        return ldexp((8.5 + bucket % 8) / 16, bucket // 8 + LOWEST)

    def snapshot(self):
        """count, avg, p50, p99, max."""
        return {
            "count": self.count,
            "avg": self.total / self.count if self.count else 0.0,
            "p50": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "max": self.maximum,
        }
