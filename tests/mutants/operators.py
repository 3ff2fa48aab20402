"""The places of a source file that can be mutated, and the replacement text of each.

Python is mutated by its syntax tree, Cython by its lines, because Cython has no parser that keeps
positions. A mutation replaces a range of bytes, so the rest of the file is unchanged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mutation:
    """One change of one file.

    Attributes:
        path: path of the file, relative to the repository.
        scope: qualified name of the function or class, "" at module level.
        kind: name of the operator.
        line: first line of the change, from 1.
        last_line: last line of the change.
        start: first byte that is replaced.
        end: byte after the last one that is replaced.
        text: replacement of these bytes.
        original: the line of the source, stripped.
        ordinal: number of this mutation among those with the same path, scope, kind and original.
    """

    path: str
    scope: str
    kind: str
    line: int
    last_line: int
    start: int
    end: int
    text: str
    original: str
    ordinal: int = 0

    @property
    def key(self) -> str:
        """An identifier that stays valid while the line is unchanged, even if it moves."""
        return f"{self.path} | {self.scope} | {self.kind} | {self.original} | {self.ordinal}"

    def apply(self, source: bytes) -> bytes:
        """Return the mutated file."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def sites(path: str, source: str) -> list[Mutation]:
    """Return every mutation of a `.py` or `.pyx` file, in the order of the file."""
    found = _cython(path, source) if path.endswith(".pyx") else _python(path, source)
    counts: dict[tuple[str, str, str], int] = {}
    numbered = []
    for mutation in sorted(found, key=lambda m: (m.start, m.end, m.kind)):
        group = (mutation.scope, mutation.kind, mutation.original)
        ordinal = counts.get(group, 0)
        counts[group] = ordinal + 1
        numbered.append(Mutation(**{**mutation.__dict__, "ordinal": ordinal}))
    return numbered


# -- Python ---------------------------------------------------------------------------------

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# Text for people and debuggers: changing it does not change behaviour.
_TEXT_FUNCTIONS: Final = frozenset({"__repr__", "__str__", "describe", "explain"})
_LOGGERS: Final = frozenset({"debug", "info", "warning", "error", "exception", "log"})


def _python(path: str, source: str) -> list[Mutation]:
    return list(_PythonSites(path, source).walk(ast.parse(source), ()))


class _PythonSites:
    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._lines = source.splitlines()
        self._starts = [0]
        for line in source.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def walk(self, node: ast.AST, scope: tuple[str, ...]) -> Iterator[Mutation]:
        for child in ast.iter_child_nodes(node):
            if self._skipped(child):
                continue
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if child.name in _TEXT_FUNCTIONS:
                    continue
                inner = (*scope, child.name)
            yield from self._of(child, inner)
            yield from self.walk(child, inner)

    @staticmethod
    def _skipped(node: ast.AST) -> bool:
        """Return True for annotations, text, and code that only affects type checkers or log
        readers."""
        if isinstance(node, ast.JoinedStr | ast.arguments | ast.Import | ast.ImportFrom):
            return True
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            return node.test.id == "TYPE_CHECKING"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            return (
                isinstance(function, ast.Attribute)
                and function.attr in _LOGGERS
                and isinstance(function.value, ast.Name)
                and function.value.id == "logger"
            )
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            return isinstance(target, ast.Name) and target.id in ("__slots__", "__all__")
        return False

    def _of(self, node: ast.AST, scope: tuple[str, ...]) -> Iterator[Mutation]:
        if self._skipped(node):
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            other = _COMPARISONS[type(node.ops[0])]()
            changed = ast.Compare(node.left, [other], node.comparators)
            yield self._replace(node, changed, "comparison", scope)
        elif isinstance(node, ast.BoolOp):
            operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield self._replace(node, ast.BoolOp(operator, node.values), "and-or", scope)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._replace(node, node.operand, "not-dropped", scope)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            arithmetic = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            changed_sum = ast.BinOp(node.left, arithmetic, node.right)
            yield self._replace(node, changed_sum, "plus-minus", scope)
        elif isinstance(node, ast.Constant):
            yield from self._constant(node, scope)
        elif isinstance(node, ast.Call):
            yield from self._call(node, scope)
        elif isinstance(node, ast.stmt):
            yield from self._statement(node, scope)
        elif isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Tuple):
            fewer = ast.Tuple(node.type.elts[1:], ast.Load())
            yield self._replace(node.type, fewer, "except-class-dropped", scope)
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            negated = ast.UnaryOp(ast.Not(), node.test)
            yield self._replace(node.test, negated, "condition-negated", scope)

    def _constant(self, node: ast.Constant, scope: tuple[str, ...]) -> Iterator[Mutation]:
        value = node.value
        if isinstance(value, bool):
            yield self._replace(node, ast.Constant(not value), "constant", scope)
        elif isinstance(value, int | float):
            other = 1 - value if value in (0, 1) else 2 * value + 1
            yield self._replace(node, ast.Constant(other), "constant", scope)

    def _call(self, node: ast.Call, scope: tuple[str, ...]) -> Iterator[Mutation]:
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            return  # symmetric
        if len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
            first, second, *rest = node.args
            swapped = ast.Call(node.func, [second, first, *rest], node.keywords)
            yield self._replace(node, swapped, "arguments-swapped", scope)

    def _statement(self, node: ast.stmt, scope: tuple[str, ...]) -> Iterator[Mutation]:
        if not scope:
            return  # a definition that is missing at import shows nothing about the tests
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Delete | ast.Raise):
            yield self._replace(node, ast.Pass(), "statement-dropped", scope)
        elif isinstance(node, ast.Continue | ast.Break):
            yield self._replace(node, ast.Pass(), "jump-dropped", scope)
        elif isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None):
            yield self._replace(node, ast.Return(ast.Constant(None)), "return-none", scope)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            arithmetic = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            changed = ast.AugAssign(node.target, arithmetic, node.value)
            yield self._replace(node, changed, "plus-minus", scope)

    def _replace(
        self, node: ast.expr | ast.stmt, new: ast.AST, kind: str, scope: tuple[str, ...]
    ) -> Mutation:
        text = ast.unparse(ast.fix_missing_locations(new))
        if isinstance(new, ast.expr) and not isinstance(new, ast.Constant | ast.Name):
            text = f"({text})"
        last = node.end_lineno or node.lineno
        return Mutation(
            path=self._path,
            scope=".".join(scope),
            kind=kind,
            line=node.lineno,
            last_line=last,
            start=self._starts[node.lineno - 1] + node.col_offset,
            end=self._starts[last - 1] + (node.end_col_offset or 0),
            text=text,
            original=self._lines[node.lineno - 1].strip(),
        )


# -- Cython ---------------------------------------------------------------------------------

# (kind, pattern, replacement). Operators are surrounded by blanks, casts and templates are not.
_REPLACED: Final = (
    ("comparison", re.compile(r" < "), " <= "),
    ("comparison", re.compile(r" <= "), " < "),
    ("comparison", re.compile(r" > "), " >= "),
    ("comparison", re.compile(r" >= "), " > "),
    ("comparison", re.compile(r" == "), " != "),
    ("comparison", re.compile(r" != "), " == "),
    ("comparison", re.compile(r" is not "), " is "),
    ("comparison", re.compile(r" is (?!not )"), " is not "),
    ("and-or", re.compile(r" and "), " or "),
    ("and-or", re.compile(r" or "), " and "),
    ("not-dropped", re.compile(r"\bnot (?!in\b|None\b)"), ""),
    ("plus-minus", re.compile(r" \+ "), " - "),
    ("plus-minus", re.compile(r" - "), " + "),
    ("plus-minus", re.compile(r" \+= "), " -= "),
    ("plus-minus", re.compile(r" -= "), " += "),
    ("constant", re.compile(r"(?<=[ (\[])0(?=[ )\]:,]|$)"), "1"),
    ("constant", re.compile(r"(?<=[ (\[])1(?=[ )\]:,]|$)"), "2"),
    ("constant", re.compile(r"\bTrue\b"), "False"),
    ("constant", re.compile(r"\bFalse\b"), "True"),
    ("jump-dropped", re.compile(r"^\s+(break|continue)$"), "pass"),
)
_DEFINITION: Final = re.compile(r"^(\s*)(?:cdef|cpdef|def|async def|class)\b.*?(\w+)\s*(?:\(|:)")
_STATEMENT: Final = re.compile(r"^\s+([\w.\[\]]+ [-+|&*]?= .+|[\w.]+\(.*\))$")
_NO_CODE: Final = re.compile(
    r"^\s*(#|cdef (?!.*=)|cimport|from|import|@|ctypedef|def |cpdef |class |raise |except|assert)"
)


def _cython(path: str, source: str) -> list[Mutation]:
    """Mutate line by line, outside comments, multi-line strings, declarations and error texts."""
    found: list[Mutation] = []
    scopes: list[tuple[int, str]] = []
    offset = depth = 0
    in_text = False
    for number, raw in enumerate(source.splitlines(keepends=True), 1):
        start, line = offset, raw.rstrip("\n")
        offset += len(raw.encode())
        quotes = line.count('"""')
        if in_text or quotes:
            in_text ^= quotes % 2 == 1
            continue
        code = line.split("  #")[0].rstrip()
        continued = depth > 0
        depth = max(0, depth + sum(map(code.count, "([{")) - sum(map(code.count, ")]}")))
        if not code.strip():
            continue
        indent = len(code) - len(code.lstrip())
        while not continued and scopes and scopes[-1][0] >= indent:
            scopes.pop()
        definition = _DEFINITION.match(code)
        if definition is not None and not continued and code.endswith((":", "(", ",")):
            scopes.append((indent, definition[2]))
        inside = [name for _, name in scopes]
        if not scopes or _NO_CODE.match(code) or '"' in code or set(inside) & _TEXT_FUNCTIONS:
            continue

        def add(kind: str, first: int, last: int, text: str) -> None:
            at = start + len(line[:first].encode())  # noqa: B023
            until = start + len(line[:last].encode())  # noqa: B023
            found.append(
                Mutation(
                    path,
                    ".".join(inside),  # noqa: B023
                    kind,
                    number,  # noqa: B023
                    number,  # noqa: B023
                    at,
                    until,
                    text,
                    line.strip(),  # noqa: B023
                )
            )

        for kind, pattern, replacement in _REPLACED:
            for match in pattern.finditer(code):
                first = match.start(1) if match.groups() else match.start()
                add(kind, first, match.end(), replacement)
        if not continued and depth == 0 and _STATEMENT.match(code):
            add("statement-dropped", indent, len(code), "pass")
    return found
