# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Decodes records into Arrow columns and hashes rows of Arrow columns, for the audit.

Creates no Python object per record. All lengths are checked against the bytes available.
"""

cimport cython

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize

DEF MAX_DATA = 2147483647
DEF MAX_ROWS = 1 << 58  # so that the sum of two sizes in bytes fits into 64 bits


cdef class Column:
    """A growing buffer for the values of one column."""

    cdef char *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __cinit__(self):
        self.data = NULL
        self.size = 0
        self.room = 0

    def __dealloc__(self):
        free(self.data)

    cdef int need(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room
        cdef char *moved
        if self.size + more <= self.room:
            return 0
        room = max(self.room * 2, self.size + more, 4096)
        moved = <char *>realloc(self.data, room)
        if moved == NULL:
            raise MemoryError()
        self.data = moved
        self.room = room
        return 0

    cdef inline int put(self, const void *source, Py_ssize_t size) except -1:
        self.need(size)
        if size:
            memcpy(self.data + self.size, source, size)
        self.size += size
        return 0

    cdef inline int put64(self, int64_t value) except -1:
        return self.put(&value, 8)

    cdef inline int put32(self, int32_t value) except -1:
        return self.put(&value, 4)

    cdef bytes take(self):
        cdef bytes found = PyBytes_FromStringAndSize(self.data, self.size)
        self.size = 0
        return found


cdef class Binary:
    """A nullable column of bytes: validity bytes (one per value), int32 offsets, data."""

    cdef Column valid
    cdef Column offsets
    cdef Column data
    cdef Py_ssize_t nulls

    def __cinit__(self):
        self.valid = Column()
        self.offsets = Column()
        self.data = Column()
        self.nulls = 0
        self.offsets.put32(0)

    cdef inline int add(self, const uint8_t *source, Py_ssize_t size) except -1:
        """Append a value. A `size` of -1 appends a null."""
        cdef uint8_t flag = size >= 0
        self.valid.put(&flag, 1)
        if size < 0:
            self.nulls += 1
        elif self.data.size + size > MAX_DATA:
            raise OverflowError("more than 2 GiB of bytes in one column: read smaller pieces")
        else:
            self.data.put(source, size)
        return self.offsets.put32(<int32_t>self.data.size)

    cdef tuple take(self):
        cdef Py_ssize_t nulls = self.nulls
        found = (self.valid.take(), self.offsets.take(), self.data.take(), nulls)
        self.nulls = 0
        self.offsets.put32(0)
        return found


cdef class RecordColumns:
    """Collects the records of any number of batches as columns.

    If `values` or `headers` is False, that column is left out.
    """

    cdef Column _offsets
    cdef Column _timestamps
    cdef Column _producer_ids
    cdef Column _epochs
    cdef Column _sequences
    cdef Column _attributes
    cdef Binary _keys
    cdef Binary _values
    cdef Column _header_offsets
    cdef Binary _header_keys
    cdef Binary _header_values
    cdef bint _with_values
    cdef bint _with_headers
    cdef readonly Py_ssize_t count
    cdef int32_t _headers

    def __cinit__(self, *, bint values=True, bint headers=True):
        self._offsets = Column()
        self._timestamps = Column()
        self._producer_ids = Column()
        self._epochs = Column()
        self._sequences = Column()
        self._attributes = Column()
        self._keys = Binary()
        self._values = Binary()
        self._header_offsets = Column()
        self._header_offsets.put32(0)
        self._header_keys = Binary()
        self._header_values = Binary()
        self._with_values = values
        self._with_headers = headers

    @property
    def size(self):
        """Size of all collected keys, values and headers in bytes."""
        return self._keys.data.size + self._values.data.size + self._header_values.data.size

    def add(self, payload, int count, int64_t base_offset, int64_t base_timestamp,
            int64_t append_time, int64_t producer_id, int16_t epoch, int32_t base_sequence,
            int16_t attributes, int64_t first, int64_t end):
        """Add those records of one uncompressed batch whose offsets are `first` to `end` - 1.

        `append_time` is the log append time of the batch, or -1 if the records have timestamps.

        Raises:
            ValueError: `payload` does not contain exactly `count` records.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            self._add(<const uint8_t *>view.buf, view.len, count, base_offset, base_timestamp,
                      append_time, producer_id, epoch, base_sequence, attributes, first, end)
        finally:
            PyBuffer_Release(&view)

    cdef int _add(self, const uint8_t *data, Py_ssize_t size, int count, int64_t base_offset,
                  int64_t base_timestamp, int64_t append_time, int64_t producer_id,
                  int16_t epoch, int32_t base_sequence, int16_t attributes, int64_t first,
                  int64_t end) except -1:
        cdef RecordReader reader = RecordReader()
        cdef int index
        cdef int64_t length, delta, stamp, offset
        cdef Py_ssize_t stop
        reader.data, reader.at, reader.end = data, 0, size
        for index in range(count):
            length = reader.varlong()
            if length < 0 or length > size - reader.at:
                raise ValueError(f"record {index} of the batch is cut off")
            stop = reader.at + <Py_ssize_t>length
            reader.end = stop
            reader.skip(1)
            stamp = base_timestamp + reader.varlong()
            delta = reader.varlong()
            offset = base_offset + delta
            if first <= offset < end:
                self._offsets.put64(offset)
                self._timestamps.put64(stamp if append_time < 0 else append_time)
                self._producer_ids.put64(producer_id)
                self._epochs.put32(epoch)
                self._sequences.put32(
                    -1 if base_sequence < 0 else <int32_t>((base_sequence + delta) & 0x7FFFFFFF)
                )
                self._attributes.put32(attributes)
                reader.blob(self._keys)
                reader.blob(self._values if self._with_values else None)
                self._take_headers(reader)
                self.count += 1
            else:
                reader.at = stop
            if reader.at != stop:
                raise ValueError(f"record {index} of the batch has bytes left over")
            reader.end = size
        if reader.at != size:
            raise ValueError("the batch has bytes left over after its records")
        return 0

    cdef int _take_headers(self, RecordReader reader) except -1:
        cdef int64_t number = reader.varlong()
        cdef int64_t _index
        if number < 0 or number > reader.end - reader.at:
            raise ValueError("a record has an invalid number of headers")
        for _index in range(number):
            reader.blob(self._header_keys if self._with_headers else None)
            reader.blob(self._header_values if self._with_headers else None)
            if self._with_headers:
                self._headers += 1
        if self._with_headers:
            self._header_offsets.put32(self._headers)
        return 0

    def take(self):
        """Return the collected columns as bytes by name, and clear them.

        Fixed-width columns have native byte order. A byte column is a tuple (validity bytes, int32
        offsets, data, number of nulls).
        """
        found = {
            "count": self.count,
            "offset": self._offsets.take(),
            "timestamp": self._timestamps.take(),
            "producerId": self._producer_ids.take(),
            "producerEpoch": self._epochs.take(),
            "sequence": self._sequences.take(),
            "attributes": self._attributes.take(),
            "key": self._keys.take(),
        }
        if self._with_values:
            found["value"] = self._values.take()
        if self._with_headers:
            found["headers"] = (
                self._header_offsets.take(), self._header_keys.take(), self._header_values.take()
            )
            self._header_offsets.put32(0)
        self.count = 0
        self._headers = 0
        return found


@cython.auto_pickle(False)  # pickling would treat `data` as a zero-terminated string
cdef class RecordReader:
    cdef const uint8_t *data
    cdef Py_ssize_t at
    cdef Py_ssize_t end

    cdef inline int64_t varlong(self) except? -9000:
        cdef uint64_t value = 0
        cdef int shift = 0
        cdef uint8_t byte
        while True:
            if self.at >= self.end or shift > 63:
                raise ValueError("a number in a record is cut off or too long")
            byte = self.data[self.at]
            self.at += 1
            value |= (<uint64_t>(byte & 0x7F)) << shift
            if byte < 0x80:
                break
            shift += 7
        return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)

    cdef inline int skip(self, Py_ssize_t count) except -1:
        if count > self.end - self.at:
            raise ValueError("a record is cut off")
        self.at += count
        return 0

    cdef inline int blob(self, Binary into) except -1:
        """Read a nullable byte string and add it to `into`, or skip it if `into` is None."""
        cdef int64_t size = self.varlong()
        if size < -1 or size > self.end - self.at:
            raise ValueError("a record has an invalid length")
        if into is not None:
            into.add(self.data + self.at, <Py_ssize_t>size)
        if size > 0:
            self.at += <Py_ssize_t>size
        return 0


cdef class View:
    """The bytes of an object that supports the buffer protocol; empty for None."""

    cdef Py_buffer _view
    cdef bint _held
    cdef const uint8_t *data
    cdef Py_ssize_t size

    def __cinit__(self, source):
        self._held = False
        self.data = NULL
        self.size = 0
        if source is not None:
            PyObject_GetBuffer(source, &self._view, PyBUF_SIMPLE)
            self._held = True
            self.data = <const uint8_t *>self._view.buf
            self.size = self._view.len

    def __dealloc__(self):
        if self._held:
            PyBuffer_Release(&self._view)


cdef inline uint64_t _mix(uint64_t value) noexcept nogil:
    """The final mixing steps of splitmix64."""
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)


cdef uint64_t _hash(const uint8_t *data, Py_ssize_t size, uint64_t seed) noexcept nogil:
    """Hash the data, eight bytes at a time. The hash does not resist deliberate collisions; the
    input is trusted."""
    cdef uint64_t word, state = _mix(seed ^ (<uint64_t>size * <uint64_t>0x9E3779B97F4A7C15))
    cdef Py_ssize_t at = 0
    while at + 8 <= size:
        memcpy(&word, data + at, 8)
        state = _mix(state ^ word) + <uint64_t>0x9E3779B97F4A7C15
        at += 8
    word = 0
    if at < size:
        memcpy(&word, data + at, size - at)
        state = _mix(state ^ word)
    return _mix(state)


cdef inline int32_t _load32(const uint8_t *place) noexcept nogil:
    cdef int32_t found
    memcpy(&found, place, 4)  # the caller's buffer may be unaligned
    return found


cdef inline int64_t _load64(const uint8_t *place) noexcept nogil:
    cdef int64_t found
    memcpy(&found, place, 8)
    return found


cdef int _check_validity(validity, View bits, Py_ssize_t end) except -1:
    """Raise ValueError if the bitmap has fewer than `end` bits."""
    if validity is not None and bits.size * 8 < end:
        raise ValueError("the validity buffer is too small")
    return 0


cdef inline bint _is_null(validity, View bits, Py_ssize_t place) noexcept:
    return validity is not None and not (bits.data[place >> 3] >> (place & 7)) & 1


cdef inline int64_t _load_offset(View ends, int width, Py_ssize_t place) noexcept:
    if width == 4:
        return _load32(ends.data + 4 * place)
    return _load64(ends.data + 8 * place)


cdef class RowHashes:
    """One 64-bit hash per row, updated column by column. It depends on the column order."""

    cdef uint64_t *_rows
    cdef readonly Py_ssize_t count

    def __cinit__(self, Py_ssize_t count):
        cdef Py_ssize_t row
        if count < 0:
            raise ValueError("the number of rows must not be negative")
        if count <= MAX_ROWS:
            self._rows = <uint64_t *>realloc(NULL, max(count, 1) * 8)
        if self._rows == NULL:
            raise MemoryError()
        self.count = count
        for row in range(count):
            self._rows[row] = <uint64_t>0x243F6A8885A308D3

    def __dealloc__(self):
        free(self._rows)

    def binary(self, validity, Py_ssize_t start, offsets, int width, data):
        """Add a column of bytes.

        Args:
            validity: Arrow validity bitmap, or None if there are no nulls.
            start: index of the first row in the bitmap and the offsets.
            offsets: offsets into `data`.
            width: size of an offset in bytes, 4 or 8.
            data: the bytes of all values, or None.

        Raises:
            ValueError: the buffers are too small.
        """
        cdef View bits = View(validity)
        cdef View ends = View(offsets)
        cdef View content = View(data)
        cdef Py_ssize_t row, place
        cdef int64_t low, high
        cdef uint64_t seed
        if not 0 <= start <= MAX_ROWS or width not in (4, 8) or \
                ends.size < (start + self.count + 1) * width:
            raise ValueError("the offsets buffer is too small")
        _check_validity(validity, bits, start + self.count)
        for row in range(self.count):
            place = start + row
            seed = self._rows[row]
            if _is_null(validity, bits, place):
                self._rows[row] = _mix(seed + 1)
                continue
            low = _load_offset(ends, width, place)
            high = _load_offset(ends, width, place + 1)
            if low < 0 or high < low or high > content.size:
                raise ValueError("an offset is outside the data")
            if high == low:
                self._rows[row] = _hash(NULL, 0, seed)
            else:
                self._rows[row] = _hash(content.data + low, high - low, seed)

    def fixed(self, validity, Py_ssize_t start, data, int width):
        """Add a column of signed integers of `width` 2, 4 or 8 bytes. Equal numbers have equal
        hashes in every width. For `validity` and `start`, see `binary`.

        Raises:
            ValueError: the buffers are too small.
        """
        cdef View bits = View(validity)
        cdef View content = View(data)
        cdef Py_ssize_t row, place
        cdef int16_t half
        cdef int64_t value
        if not 0 <= start <= MAX_ROWS or width not in (2, 4, 8) or \
                content.size < (start + self.count) * width:
            raise ValueError("the data buffer is too small")
        _check_validity(validity, bits, start + self.count)
        for row in range(self.count):
            place = start + row
            if _is_null(validity, bits, place):
                self._rows[row] = _mix(self._rows[row] + 1)
                continue
            if width == 2:
                memcpy(&half, content.data + 2 * place, 2)
                value = half
            elif width == 4:
                value = _load32(content.data + 4 * place)
            else:
                value = _load64(content.data + 8 * place)
            self._rows[row] = _hash(<const uint8_t *>&value, 8, self._rows[row])

    def lists(self, validity, Py_ssize_t start, offsets, int width, RowHashes elements not None,
              int64_t first):
        """Add a column of lists. `elements` contains the hashes of the list elements, the first of
        which has the offset `first`. For the other arguments, see `binary`.

        Raises:
            ValueError: the buffers are too small, or an offset has no element.
        """
        cdef View bits = View(validity)
        cdef View ends = View(offsets)
        cdef Py_ssize_t row, place
        cdef int64_t low, high, element
        cdef uint64_t state
        if not 0 <= start <= MAX_ROWS or width not in (4, 8) or \
                ends.size < (start + self.count + 1) * width:
            raise ValueError("the offsets buffer is too small")
        _check_validity(validity, bits, start + self.count)
        for row in range(self.count):
            place = start + row
            if _is_null(validity, bits, place):
                self._rows[row] = _mix(self._rows[row] + 1)
                continue
            low = _load_offset(ends, width, place)
            high = _load_offset(ends, width, place + 1)
            # Check the signs first: the difference of two values ≥ 0 fits into 64 bits.
            if not 0 <= first <= low <= high or high - first > elements.count:
                raise ValueError("an offset is outside the elements")
            state = _mix(self._rows[row] ^ (<uint64_t>(high - low) * <uint64_t>0x9E3779B97F4A7C15))
            for element in range(low - first, high - first):
                state = _mix(state ^ elements._rows[element]) + <uint64_t>0x9E3779B97F4A7C15
            self._rows[row] = _mix(state)

    def total(self):
        """Return the sum of the hashes modulo 2⁶⁴. It does not depend on the order of the rows."""
        cdef uint64_t found = 0
        cdef Py_ssize_t row
        for row in range(self.count):
            found += _mix(self._rows[row])
        return found
