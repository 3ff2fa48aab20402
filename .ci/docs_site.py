"""A hook of MkDocs: pages of the repository that do not lie in docs/ become pages of the site.

On the site README.md and the others are `project/<path>`. Their links, and the links of docs/ to
them, are rewritten; a link to a file that is no page, such as a source, becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = (
    "README.md",
    "RELIABILITY.md",
    "CHANGELOG.md",
    "DESIGN.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "benchmarks/README.md",
)
_LINK: Final = re.compile(r"(!?)\[((?:`[^`]*`|[^\]`])*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def place(path: str) -> str | None:
    """Where a file of the repository is in the site; None if it is not part of it."""
    if path.startswith("docs/") and "." in posixpath.basename(path):
        return path.removeprefix("docs/")
    if path in PAGES or path.startswith("benchmarks/plots/"):
        return f"project/{path}"
    return None


def origin(page: str) -> str:
    """The file of the repository that is this page of the site."""
    return page.removeprefix("project/") if page.startswith("project/") else f"docs/{page}"


def rewritten(text: str, page: str) -> str:
    """The text of a page with links between pages of the site."""
    folder = posixpath.dirname(origin(page))

    def link(match: re.Match[str]) -> str:
        image, title, target = match.groups()
        name, sharp, anchor = target.partition("#")
        if not name or re.match(r"[a-z]+:", target):
            return match[0]
        found = place(posixpath.normpath(posixpath.join(folder, name)))
        if found is None:
            return "" if image else title
        relative = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"{image}[{title}]({relative}{sharp}{anchor})"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and the plots that lie outside docs/."""
    plots = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/plots/*.png")]
    for name in (*PAGES, *sorted(plots)):
        source = str(ROOT / name)
        files.append(File.generated(config, f"project/{name}", abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite the links of a page."""
    return rewritten(markdown, page.file.src_uri)
