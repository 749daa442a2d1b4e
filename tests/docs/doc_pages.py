"""The pages of the docs, and every fenced block of theirs: what a test has to run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<language>[\w-]*)[^`]*")
_COMMENT = re.compile(r" *<!-- (.*?) -->")
_NAME = re.compile(r"# (\S+\.\w+|\S+/\S+)")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, in which language, and what the comment on the line above says."""

    page: str
    line: int
    language: str
    text: str
    comment: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @cached_property
    def name(self) -> str:
        """The file that the block is, by its first line: ``# proj.py``; ''."""
        found = _NAME.fullmatch(self.text.partition("\n")[0])
        return found[1] if found else ""

    @property
    def not_run(self) -> str:
        """Why it can't be run, as the page says; ''."""
        said, _, why = self.comment.partition("not run: ")
        return why if not said else ""


def pages() -> list[str]:
    """README.md and each page of the docs, from the repository's root; reports are made by what they report."""
    found = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "reports"]
    return ["README.md", *(str(path.relative_to(ROOT)) for path in found)]


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, in order."""
    found: list[Block] = []
    lines = (ROOT / page).read_text().splitlines()
    position = 0
    while position < len(lines):
        opened = _FENCE.fullmatch(lines[position])
        if opened:
            close = re.compile(rf" *{opened['ticks']} *")
            end = next(n for n in range(position + 1, len(lines)) if close.fullmatch(lines[n]))
            comment = _COMMENT.fullmatch(lines[position - 1])
            text = "".join(line[len(opened["indent"]) :] + "\n" for line in lines[position + 1 : end])
            found.append(Block(page, position + 1, opened["language"], text, comment[1] if comment else ""))
            position = end
        position += 1
    return found


def the_block(page: str, name: str, number: int = 0) -> Block:
    """The block that is the file `name`; of several, by `number`."""
    found = [block for block in blocks_of(page) if block.name == name]
    assert found, f"{page} has no block {name}"
    return found[number]
