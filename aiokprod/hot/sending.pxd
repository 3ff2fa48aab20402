from aiokprod.hot.append cimport Appender


cdef class Sends:
    cdef Appender appender
    cdef object slow_send
