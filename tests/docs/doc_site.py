"""Build the docs as a site, and look at what was built: ``make docs``.

A warning of the build is an error. What it can't see is looked for here: a page that would ask the network for
something, and a public name that the reference leaves out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"

#: Attributes by which a page loads something; a link loads nothing before somebody follows it.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src", "use": "href"}


class Reader(HTMLParser):
    """What a page loads, and the names that it has anchors for."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag loads, and its id."""
        given = {name: value or "" for name, value in attrs}
        if tag in LOADS and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get(LOADS[tag], ""))
        self.anchors.add(given.get("id", ""))


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text())
    return reader


def main() -> None:
    # Material's notice on the next MkDocs isn't about this build. Not --quiet: then no warning is counted.
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    built = subprocess.run(
        command, cwd=ROOT, env=env, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if built.returncode:
        sys.exit(f"{built.stdout}\nmkdocs build --strict: ended with {built.returncode}")
    pages = sorted(SITE.rglob("*.html"))
    sources = sorted((ROOT / "docs").rglob("*.md"))
    missing = [str(s) for s in sources if not (SITE / s.relative_to(ROOT / "docs")).with_suffix(".html").exists()]
    assert not missing, f"not built: {missing}"
    for page in pages:
        for target in read(page).loads:
            assert not target.startswith(("http:", "https:", "//")), f"{page.relative_to(SITE)} loads {target}"
    for sheet in SITE.rglob("*.css"):
        assert "url(http" not in sheet.read_text(), f"{sheet.relative_to(SITE)} loads something from elsewhere"
    check_reference(read(SITE / "reference.html").anchors)
    roles = re.findall(r":\w+:<code>[^<]*", (SITE / "reference.html").read_text())
    assert not roles, f"roles of Sphinx in the docstrings of public names, which show as they stand: {roles}"
    print(f"{len(pages)} pages in {SITE.relative_to(ROOT)}, none of which loads anything from elsewhere")


def check_reference(anchors: set[str]) -> None:
    """Every public name is there: of the package, of its signals, of its errors, of what users test with."""
    from celery.utils.dispatch import Signal

    import celery_once_beat
    from celery_once_beat import errors, signals, testing

    public = {f"celery_once_beat.{name}" for name in celery_once_beat.__all__}
    public |= {f"{testing.__name__}.{name}" for name in testing.__all__}
    for module in (signals, errors):
        own = {name for name, each in vars(module).items() if isinstance(each, (Signal, type)) and name[0] != "_"}
        public |= {f"{module.__name__}.{name}" for name in own - {"Any", "Signal", "datetime", "EXCEPTION_GROUP"}}
    assert public <= anchors, f"not in the reference: {sorted(public - anchors)}"


if __name__ == "__main__":
    main()
