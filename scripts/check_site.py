"""Check a built documentation site: `python scripts/check_site.py out/site`.

Every link and image, including the links of the navigation, must point to a file of the site, and every anchor to an
element of its page. No page may load anything from another host. Links to other hosts are allowed.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
"""Tags and attributes of files that a browser loads with the page."""


class Page(HTMLParser):
    """The links, loaded files and anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and (target := values.get("href")):
            self.links.append(target)
        if tag in LOADED and (target := values.get(LOADED[tag])):
            self.loaded.append(target)


@cache
def read(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


def find_problems(site: Path) -> dict[str, list[str]]:
    """Find dead links, dead anchors and files from other hosts, each with the pages that contain it."""
    found: dict[str, list[str]] = {}
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # Its links are absolute, because it is served for any address.
            continue
        page = read(path)
        for target in page.links + page.loaded:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                problem = "is loaded from another host" if target in page.loaded and parts.scheme != "data" else ""
                name = target
            else:
                file = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
                file = file / "index.html" if file.is_dir() else file
                name = os.path.relpath(file, site) + (f"#{parts.fragment}" if parts.fragment else "")
                problem = check_target(file, unquote(parts.fragment))
            if problem:
                found.setdefault(f"{name} {problem}", []).append(str(path.relative_to(site)))
    return found


def check_target(file: Path, anchor: str) -> str:
    """Say what is wrong with a link to this file and anchor; an empty text if nothing is."""
    if not file.is_file():
        return "does not exist"
    if anchor and file.suffix == ".html" and anchor not in read(file).anchors:
        return "is not an anchor of that page"
    return ""


def main() -> None:
    site = Path(sys.argv[1])
    count = len(list(site.rglob("*.html")))
    if not count:
        sys.exit(f"{site} has no pages; build it with `make docs`")
    if found := find_problems(site):
        sys.exit("\n".join(f"{problem} (on {len(names)} pages: {names[0]} …)" for problem, names in found.items()))
    print(f"{count} pages: all links work, and nothing is loaded from another host")


if __name__ == "__main__":
    main()
