# Varints and murmur2 as inline C.
#
# Varints are the zig-zag base-128 integers of record batch v2 (Kafka protocol guide, "Record
# Batch"; Java `ByteUtils`). Callers must first reserve the bytes that `varint_size` returns.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Number of bits, without a loop: about every second record differs in size from the previous
       record, so branches would often be mispredicted. */
    #if defined(__GNUC__) || defined(__clang__)
    static inline int aiokprod_bits(uint64_t z) { return 64 - __builtin_clzll(z); }
    #elif defined(_MSC_VER) && defined(_M_X64)
    #include <intrin.h>
    static inline int aiokprod_bits(uint64_t z) {
        unsigned long i;
        _BitScanReverse64(&i, z);
        return (int)i + 1;
    }
    #else
    static inline int aiokprod_bits(uint64_t z) {
        int n = 0;
        while (z) { z >>= 1; n++; }
        return n;
    }
    #endif
    /* memcpy that makes no call for short strings; most keys and values are short. */
    static inline void aiokprod_copy(char *to, const char *from, size_t n) {
        if (n > 64) {
            memcpy(to, from, n);
        } else if (n >= 16) {
            memcpy(to, from, 16);
            if (n > 32) {
                memcpy(to + 16, from + 16, 16);
                memcpy(to + n - 32, from + n - 32, 16);
            }
            memcpy(to + n - 16, from + n - 16, 16);
        } else if (n >= 8) {
            memcpy(to, from, 8);
            memcpy(to + n - 8, from + n - 8, 8);
        } else if (n >= 4) {
            memcpy(to, from, 4);
            memcpy(to + n - 4, from + n - 4, 4);
        } else if (n) {
            to[0] = from[0];
            to[n >> 1] = from[n >> 1];
            to[n - 1] = from[n - 1];
        }
    }
    """
    int aiokprod_bits(uint64_t z) noexcept nogil  # for z > 0
    void aiokprod_copy(char* to, const char* source, size_t n) noexcept nogil


cdef inline int varint_size(int64_t value) noexcept nogil:
    cdef uint64_t z = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    return (aiokprod_bits(z | 1) * 9 + 64) >> 6  # bits / 7, rounded up


cdef inline char* write_varint(char* p, int64_t value) noexcept nogil:
    cdef uint64_t z = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    if z < 0x80:
        p[0] = <char>z
        return p + 1
    if z < 0x4000:
        p[0] = <char>(z | 0x80)
        p[1] = <char>(z >> 7)
        return p + 2
    while z >= 0x80:
        p[0] = <char>((z & 0x7F) | 0x80)
        p += 1
        z >>= 7
    p[0] = <char>z
    return p + 1


cdef inline const char* read_varint(const char* p, const char* end, int64_t* out) noexcept nogil:
    """Return the position after the varint, or NULL if the varint extends past `end` or has more
    than ten bytes."""
    cdef uint64_t z = 0
    cdef int shift = 0
    while p < end and shift < 70:
        z |= <uint64_t>((<uint8_t>p[0]) & 0x7F) << shift
        if not ((<uint8_t>p[0]) & 0x80):
            out[0] = <int64_t>(z >> 1) ^ -<int64_t>(z & 1)
            return p + 1
        p += 1
        shift += 7
    return NULL


cdef inline uint32_t murmur2_bytes(const uint8_t* data, Py_ssize_t n) noexcept nogil:
    """Return the hash of Java's `Utils.murmur2`: seed 0x9747b28c, m 0x5bd1e995, r 24, 32-bit
    wrap-around."""
    cdef uint32_t m = 0x5BD1E995u
    cdef uint32_t h = 0x9747B28Cu ^ <uint32_t>n
    cdef uint32_t k
    while n >= 4:
        k = (<uint32_t>data[0] | (<uint32_t>data[1] << 8)
             | (<uint32_t>data[2] << 16) | (<uint32_t>data[3] << 24))
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        data += 4
        n -= 4
    if n == 3:
        h ^= <uint32_t>data[2] << 16
    if n >= 2:
        h ^= <uint32_t>data[1] << 8
    if n >= 1:
        h ^= <uint32_t>data[0]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return h
