"""An MkDocs hook that adds pages from outside docs/ to the site.

On the site, README.md and the other pages have the paths `project/<path>`. The links in these pages
and the links to them are rewritten. A link to a file that is not a page, such as source code,
becomes plain text.
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
    """Return the path on the site of a file in the repository, or None if the site lacks it."""
    if path.startswith("docs/") and "." in posixpath.basename(path):
        return path.removeprefix("docs/")
    if path in PAGES or path.startswith("benchmarks/plots/"):
        return f"project/{path}"
    return None


def origin(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    return page.removeprefix("project/") if page.startswith("project/") else f"docs/{page}"


def rewritten(text: str, page: str) -> str:
    """Return the text of a page with its links rewritten for the site."""
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
    """Add the pages and the plots that are outside docs/."""
    plots = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/plots/*.png")]
    for name in (*PAGES, *sorted(plots)):
        source = str(ROOT / name)
        files.append(File.generated(config, f"project/{name}", abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite the links of a page."""
    return rewritten(markdown, page.file.src_uri)
