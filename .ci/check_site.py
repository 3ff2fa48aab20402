"""Opens every page of the built site in headless Chromium, with the widths of a screen and a phone.

    python .ci/check_site.py build/site [--screenshots FOLDER]

The check fails if there is a console error, a link to a missing page or heading, or a page that
scrolls horizontally on a phone. It needs playwright and Debian's chromium-headless-shell or
chromium.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, sync_playwright

WIDTHS: Final = {"screen": 1280, "phone": 390}
BROWSERS: Final = ("chromium-headless-shell", "chromium", "google-chrome")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, so that requests are not logged."""


def links(page: Page) -> set[str]:
    return set(page.eval_on_selector_all("a[href]", "all => all.map(one => one.href)"))


def anchors(page: Page) -> set[str]:
    return set(page.eval_on_selector_all("[id]", "all => all.map(one => one.id)"))


def listen(page: Page, errors: list[str]) -> None:
    """Append all future errors of the page to `errors`."""
    page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("requestfailed", lambda request: errors.append(f"{request.url} failed"))


def check(site: Path, screenshots: Path | None) -> list[str]:
    """Open all pages and return a line for each problem."""
    wrong: list[str] = []
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        return [f"no browser: install {BROWSERS[0]}"]
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    known: dict[str, set[str]] = {}
    linked: dict[str, set[str]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        errors: list[str] = []
        for kind, width in WIDTHS.items():
            page = browser.new_page(viewport={"width": width, "height": 844})
            listen(page, errors)
            for name in names:
                page.goto(base + name, wait_until="load")
                wrong += [f"{name} ({kind}): {error}" for error in errors]
                errors.clear()
                overflow = page.evaluate(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                if overflow > 0:
                    wrong.append(f"{name} ({kind}): {overflow} px wider than the window")
                if kind == "screen":
                    known[name], linked[name] = anchors(page), links(page)
                if screenshots is not None:
                    target = screenshots / f"{name.replace('/', '-')}-{kind}.png"
                    page.screenshot(path=str(target))
        browser.close()
    server.shutdown()
    for name, targets in linked.items():
        for target in sorted(targets):
            if not target.startswith(base):
                continue
            path, _, anchor = target.removeprefix(base).partition("#")
            path = path.partition("?")[0] or "index.html"
            if not (site / path).is_file():
                wrong.append(f"{name}: {path} does not exist")
            elif anchor and path in known and anchor not in known[path]:
                wrong.append(f"{name}: {path} has no heading {anchor}")
    print(f"{len(names)} pages, {sum(map(len, linked.values()))} links, {len(wrong)} findings")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--screenshots", type=Path, help="also write a picture of every page")
    options = parser.parse_args()
    if options.screenshots is not None:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    wrong = check(options.site.resolve(), options.screenshots)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
