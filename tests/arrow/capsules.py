"""Arrow structures built byte by byte with ctypes, including invalid ones that no library exports.
Each structure records its releases."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

P = ctypes.c_void_p
I64 = ctypes.c_int64


class CSchema(ctypes.Structure):
    """The C struct `ArrowSchema`."""


class CArray(ctypes.Structure):
    """The C struct `ArrowArray`."""


class CStream(ctypes.Structure):
    """The C struct `ArrowArrayStream`."""


SCHEMA_RELEASE = ctypes.CFUNCTYPE(None, ctypes.POINTER(CSchema))
ARRAY_RELEASE = ctypes.CFUNCTYPE(None, ctypes.POINTER(CArray))
STREAM_RELEASE = ctypes.CFUNCTYPE(None, ctypes.POINTER(CStream))
GET_SCHEMA = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(CStream), ctypes.POINTER(CSchema))
GET_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(CStream), ctypes.POINTER(CArray))
GET_ERROR = ctypes.CFUNCTYPE(P, ctypes.POINTER(CStream))

CSchema._fields_ = [
    ("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", P), ("flags", I64),
    ("n_children", I64), ("children", ctypes.POINTER(ctypes.POINTER(CSchema))),
    ("dictionary", ctypes.POINTER(CSchema)), ("release", SCHEMA_RELEASE), ("private_data", P),
]  # fmt: skip
CArray._fields_ = [
    ("length", I64), ("null_count", I64), ("offset", I64), ("n_buffers", I64), ("n_children", I64),
    ("buffers", ctypes.POINTER(P)), ("children", ctypes.POINTER(ctypes.POINTER(CArray))),
    ("dictionary", ctypes.POINTER(CArray)), ("release", ARRAY_RELEASE), ("private_data", P),
]  # fmt: skip
CStream._fields_ = [
    ("get_schema", GET_SCHEMA), ("get_next", GET_NEXT), ("get_last_error", GET_ERROR),
    ("release", STREAM_RELEASE), ("private_data", P),
]  # fmt: skip

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [P, ctypes.c_char_p, P]


_names: dict[bytes, bytes] = {}
_exported: list[Any] = []
"""References to all exported structures. A consumer may release a structure as late as in its own
deallocation."""


def capsule(pointer: Any, name: bytes) -> Any:
    """Return a capsule without a destructor. `pointer` must stay alive."""
    name = _names.setdefault(name, name)  # a capsule does not own its name
    return new_capsule(ctypes.addressof(pointer), name, None)


class Column:
    """An exported array with its type. Any field can be set to a wrong value on purpose.

    Args:
        buffers: contents of the buffers; None is a missing buffer.
        changes: fields of the C structs to overwrite, e.g. ``array__n_buffers=1``.
    """

    def __init__(
        self,
        name: str,
        format: str,
        length: int,
        buffers: Sequence[bytes | None] = (),
        children: Sequence[Column] = (),
        *,
        offset: int = 0,
        null_count: int = -1,
        dictionary: Column | None = None,
        **changes: Any,
    ) -> None:
        self.released: list[str] = []
        self.kept: list[Any] = [children, dictionary]
        self.schema: CSchema = CSchema(
            format=format.encode(),
            name=name.encode(),
            n_children=len(children),
            children=self._pointers(CSchema, [child.schema for child in children]),
            dictionary=None if dictionary is None else ctypes.pointer(dictionary.schema),
            release=self._keep(SCHEMA_RELEASE(self._release_schema)),
        )
        self.array: CArray = CArray(
            length=length,
            null_count=null_count,
            offset=offset,
            n_buffers=len(buffers),
            buffers=self._buffers(buffers),
            n_children=len(children),
            children=self._pointers(CArray, [child.array for child in children]),
            dictionary=None if dictionary is None else ctypes.pointer(dictionary.array),
            release=self._keep(ARRAY_RELEASE(self._release_array)),
        )
        for change, value in changes.items():
            part, _, field = change.partition("__")
            setattr(getattr(self, part), field, value)

    def _keep(self, thing: Any) -> Any:
        self.kept.append(thing)
        return thing

    def _buffers(self, buffers: Sequence[bytes | None]) -> Any:
        pointers = (P * max(1, len(buffers)))()
        for i, content in enumerate(buffers):
            if content is not None:
                kept = self._keep(ctypes.create_string_buffer(content, len(content) + 1))
                pointers[i] = ctypes.addressof(kept)
        return ctypes.cast(self._keep(pointers), ctypes.POINTER(P))

    def _pointers(self, kind: Any, parts: list[Any]) -> Any:
        found = (ctypes.POINTER(kind) * max(1, len(parts)))(*(ctypes.pointer(p) for p in parts))
        return ctypes.cast(self._keep(found), ctypes.POINTER(ctypes.POINTER(kind)))

    def _release_schema(self, schema: Any) -> None:
        self.released.append("schema")
        schema.contents.release = SCHEMA_RELEASE()

    def _release_array(self, array: Any) -> None:
        self.released.append("array")
        array.contents.release = ARRAY_RELEASE()

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        _exported.append(self)
        return capsule(self.schema, b"arrow_schema"), capsule(self.array, b"arrow_array")


def offsets(*numbers: int) -> bytes:
    """Return 32-bit offsets in native byte order."""
    return struct.pack(f"={len(numbers)}i", *numbers)


def binary(name: str, *cells: bytes, **options: Any) -> Column:
    """Return a column of bytes without nulls."""
    ends = [0]
    for cell in cells:
        ends.append(ends[-1] + len(cell))
    options.setdefault("format", "z")
    return Column(
        name, options.pop("format"), len(cells), [None, offsets(*ends), b"".join(cells)], **options
    )


def table(*columns: Column, length: int | None = None, **options: Any) -> Column:
    """Return a record batch, which is a struct array without nulls."""
    rows = columns[0].array.length if length is None else length
    return Column("", "+s", rows, [None], columns, **options)


class Batches:
    """An Arrow stream of tables with one schema.

    Args:
        code: the result of `get_next` after the last table; `text` is then the stream's last error.
        schema_code: the result of `get_schema`.
        on_next: called in each `get_next`.
    """

    def __init__(
        self,
        *tables: Column,
        code: int = 0,
        text: bytes | None = b"disk on fire",
        schema_code: int = 0,
        on_next: Callable[[], None] = lambda: None,
    ) -> None:
        self.tables = list(tables)
        self.exported = tables
        self.schema = tables[0].schema
        self.released = 0
        self.code = code
        self.schema_code = schema_code
        self.on_next = on_next
        self.text = None if text is None else ctypes.create_string_buffer(text)
        self.kept = (
            GET_SCHEMA(self._get_schema),
            GET_NEXT(self._get_next),
            GET_ERROR(lambda _: None if self.text is None else ctypes.addressof(self.text)),
            STREAM_RELEASE(self._release),
        )
        self.stream = CStream(*self.kept)

    def _get_schema(self, _: Any, out: Any) -> int:
        if not self.schema_code:
            ctypes.memmove(out, ctypes.addressof(self.schema), ctypes.sizeof(CSchema))
        return self.schema_code

    def _get_next(self, _: Any, out: Any) -> int:
        self.on_next()
        if self.tables:
            table = self.tables.pop(0)
            ctypes.memmove(out, ctypes.addressof(table.array), ctypes.sizeof(CArray))
            return 0
        if not self.code:
            ctypes.memset(out, 0, ctypes.sizeof(CArray))
        return self.code

    def _release(self, stream: Any) -> None:
        self.released += 1
        stream.contents.release = STREAM_RELEASE()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        _exported.append(self)
        return capsule(self.stream, b"arrow_array_stream")
