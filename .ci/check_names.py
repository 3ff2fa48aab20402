"""Finds names in docstrings, comments and documents that do not exist in the code.

    python .ci/check_names.py

- An entry of a section `Attributes:` must be an attribute of the class or of one of its bases.
- The list of modules in the docstring of a package must contain only modules of the package.
- A dotted name in backticks (`_net.client`, `aiokprod._wire.crc.crc32c`) must begin with a module
  that contains the next part of the name.
- A path in backticks (`_net/tls_transport`, `tests/test_layers.py`) must exist. The suffix may be
  omitted, and `*`, `<name>` and `{name}` match any text.
- Class names must be unique; a leading underscore is ignored. Message structures are exempt,
  because they have the names of Kafka's schemas, some of which occur in two messages.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "aiokprod"
SOURCES: Final = (".py", ".pyi", ".pyx", ".pxd")
DOCUMENTS: Final = ("*.md", "docs/*.md", "docs/design/*.md")

_ATTRIBUTES: Final = re.compile(r"^Attributes:\n((?:    .*\n?|\n)+)", re.MULTILINE)
_ENTRY: Final = re.compile(r"^    ([a-z_]\w*(?:, [a-z_]\w*)*):", re.MULTILINE)
_LISTED: Final = re.compile(
    r"^([a-z_]\w*(?:\.\w+)?(?:, [a-z_]\w*(?:\.\w+)?)*) {2,}\S", re.MULTILINE
)
_CLASS: Final = re.compile(r"^(?:cdef )?class _?(\w+)", re.MULTILINE)
_CODE: Final = re.compile(r"`([^`\n]+)`")
_DOTTED: Final = re.compile(r"[a-z_]\w*(?:\.\w+)+")
_PATH: Final = re.compile(r"[\w.<>{}*-]+(?:/[\w.<>{}*-]+)+/?")


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the names that a class defines or assigns."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(part.name)
    return found


def missing_attributes(text: str, inherited: dict[str, tuple[set[str], list[str]]]) -> list[str]:
    """Return a line for each entry of a section `Attributes:` that is missing in its class.

    Args:
        inherited: (attributes, names of the bases) of each class, by its name.
    """
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        section = _ATTRIBUTES.search((ast.get_docstring(node) or "") + "\n")
        if section is None:
            continue
        known = attributes_of(node)
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        while bases:
            more, further = inherited.get(bases.pop(), (set(), []))
            known |= more
            bases += further
        for entry in _ENTRY.findall(section[1]):
            found += [
                f"{node.lineno}: class {node.name} has no attribute {name}"
                for name in entry.split(", ")
                if name not in known
            ]
    return found


def repeated_classes(texts: dict[Path, str]) -> Iterator[str]:
    """Yield a line for each class that has the name of an earlier class, except in messages.

    Args:
        texts: texts of the modules by path. Stubs are ignored, because they repeat the classes of
            their modules.
    """
    first: dict[str, str] = {}
    for path, text in texts.items():
        if path.suffix not in (".py", ".pyx") or path.parent.name == "messages":
            continue
        for match in _CLASS.finditer(text):
            place = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start(1)) + 1}"
            earlier = first.setdefault(match[1], place)
            if earlier != place:
                yield f"{place}: {earlier} has a class {match[1]} too"


def is_module(path: Path) -> bool:
    return path.is_dir() or any(path.with_name(path.name + end).exists() for end in SOURCES)


@cache
def text_of_module(path: Path) -> str:
    if path.is_dir():
        path /= "__init__"
    files = [path.with_name(path.name + end) for end in SOURCES]
    return "\n".join(file.read_text(encoding="utf-8") for file in files if file.exists())


def missing_modules(package: Path, text: str) -> list[str]:
    """Return a line for each module that the docstring of a package lists but that is missing."""
    docstring = ast.get_docstring(ast.parse(text)) or ""
    return [
        f"1: {package.name} has no module {name}"
        for listed in _LISTED.findall(docstring)
        for name in listed.split(", ")
        if not is_module(package / name.split(".")[0])
    ]


def wrong_dotted(name: str) -> str | None:
    """Return the problem of a dotted name, or None if it is right or not a name of this package."""
    parts = name.removeprefix("aiokprod.").split(".")
    hidden = PACKAGE / f"_{parts[0]}"
    if hidden.is_dir() and is_module(hidden.joinpath(*parts[1:2])) and parts[1:]:
        return f"{name}: write _{name}"
    if not name.startswith("aiokprod.") and not (
        parts[0].startswith("_") and is_module(PACKAGE / parts[0])
    ):
        return None
    path = PACKAGE
    for part in parts:
        if not is_module(path / part):
            known = re.search(rf"\b{re.escape(part)}\b", text_of_module(path)) is not None
            return None if known else f"{name}: {path.name} has no {part}"
        path /= part
    return None


def wrong_path(name: str) -> str | None:
    """Return the problem of a path, or None if it is right or not a path of this project."""
    first = name.split("/")[0]
    base = next((top for top in (ROOT, PACKAGE) if (top / first).is_dir()), None)
    if base is None or first.startswith(".c"):  # .cache
        return None
    pattern = re.sub(r"<[^>]*>|\{[^}]*\}", "*", name.rstrip("/"))
    if any(any(base.glob(pattern + end)) for end in ("", *SOURCES)):
        return None
    module, _, attribute = pattern.rpartition(".")
    if module and is_module(base / module) and attribute in text_of_module(base / module):
        return None
    return f"{name}: no such path"


def wrong_names(text: str) -> Iterator[str]:
    """Yield a line for each dotted name or path in backticks that does not exist."""
    for match in _CODE.finditer(text):
        code = re.sub(r"\(.*\)$", "", match[1])
        wrong = None
        if _DOTTED.fullmatch(code):
            wrong = wrong_dotted(code)
        elif _PATH.fullmatch(code):
            wrong = wrong_path(code)
        if wrong is not None:
            yield f"{text.count(chr(10), 0, match.start()) + 1}: {wrong}"


def main() -> int:
    sources = [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in SOURCES]
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    classes = {
        node.name: (attributes_of(node), [b.id for b in node.bases if isinstance(b, ast.Name)])
        for path, text in texts.items()
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }
    repeated = list(repeated_classes(texts))
    for finding in repeated:
        print(finding)
    for pattern in DOCUMENTS:
        texts |= {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern))}
    status = 1 if repeated else 0
    for path, text in texts.items():
        found = list(wrong_names(text))
        if path.suffix == ".py":
            found += missing_attributes(text, classes)
        if path.name == "__init__.py":
            found += missing_modules(path.parent, text)
        for finding in found:
            print(f"{path.relative_to(ROOT)}:{finding}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
