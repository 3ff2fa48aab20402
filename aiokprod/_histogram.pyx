# cython: boundscheck=False, wraparound=False, cdivision=True
"""A histogram for the measurements taken with every request.

Buckets grow by the factor 2**(1/8): bucket k holds the values v with 2**(k/8) < v <= 2**((k+1)/8).
These are the buckets of OpenTelemetry's exponential histograms of scale 3 and of Prometheus' native
histograms of schema 3, so that values are exported without loss.
"""

from libc.math cimport frexp, exp2
from libc.stdint cimport int64_t
from libc.string cimport memset

# The buckets cover 2**-41 (half a picosecond) to 2**60. Values outside this range are counted in
# the outermost buckets.
cdef enum:
    PER_OCTAVE = 8
    LOWEST = -41 * PER_OCTAVE
    BUCKETS = (60 + 41) * PER_OCTAVE

cdef double LIMIT = 1e18

# 2**(j/8), correctly rounded: the bounds between 1 and 2.
cdef double[PER_OCTAVE] BOUNDS = [
    1.0,
    1.0905077326652577,
    1.189207115002721,
    1.2968395546510096,
    1.4142135623730951,
    1.5422108254079407,
    1.681792830507429,
    1.8340080864093424,
]


cdef inline int index_of(double value) noexcept:
    """Return the index k of the bucket that holds a value > 0."""
    cdef int exponent, step
    cdef double mantissa = frexp(min(value, LIMIT), &exponent) * 2  # 1 <= mantissa < 2
    for step in range(PER_OCTAVE - 1, -1, -1):
        if mantissa > BOUNDS[step]:
            return (exponent - 1) * PER_OCTAVE + step
    return (exponent - 1) * PER_OCTAVE - 1  # a power of two is an upper bound


cdef class Histogram:
    """Counts values in buckets that grow by 9 %, so quantiles are accurate within 4.5 %.

    A histogram takes 6 KiB, independently of the number of values.

    Attributes:
        count, total, maximum: count, sum and maximum of the added values; negative values and NaN
            count as 0.
    """

    cdef readonly int64_t count
    cdef readonly double total
    cdef readonly double maximum
    cdef double peak
    cdef int64_t zeros
    cdef int64_t[BUCKETS] buckets

    def __cinit__(self):
        memset(self.buckets, 0, sizeof(self.buckets))

    def add(self, double value):
        """Count a value. O(1)."""
        if value > 0.0:
            self.buckets[min(max(index_of(value) - LOWEST, 0), BUCKETS - 1)] += 1
        else:
            value = 0.0  # including NaN
            self.zeros += 1
        self.count += 1
        self.total += value
        self.maximum = max(self.maximum, value)
        self.peak = max(self.peak, value)

    def take_peak(self):
        """Return the maximum since the last call, or 0.0 without values. Only one caller may use
        this method."""
        peak, self.peak = self.peak, 0.0
        return peak

    def quantile(self, double q):
        """Return the geometric mean of the bounds of the bucket that holds the q-quantile (q from 0
        to 1), limited to the maximum; 0.0 without values."""
        cdef double left = q * self.count - self.zeros
        cdef int bucket
        if left <= 0 and self.zeros:
            return 0.0
        for bucket in range(BUCKETS):
            left -= self.buckets[bucket]
            if left <= 0 and self.buckets[bucket]:
                return min(exp2((bucket + LOWEST + 0.5) / PER_OCTAVE), self.maximum)
        return self.maximum

    def snapshot(self):
        """Return the content of the histogram as plain values.

        Returns:
            count, sum, avg, p50, p99 and max of the values, and for export `scale` (3), `zeros`
            (number of values that are 0), `offset` (k of the first bucket in `buckets`) and
            `buckets` (number of values in bucket k, k + 1, ...; empty if there are none).
        """
        cdef int first = 0, last = BUCKETS
        while first < BUCKETS and not self.buckets[first]:
            first += 1
        while last > first and not self.buckets[last - 1]:
            last -= 1
        return {
            "count": self.count,
            "sum": self.total,
            "avg": self.total / self.count if self.count else 0.0,
            "p50": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "max": self.maximum,
            "scale": 3,
            "zeros": self.zeros,
            "offset": first + LOWEST if first < last else 0,
            "buckets": [self.buckets[bucket] for bucket in range(first, last)],
        }
