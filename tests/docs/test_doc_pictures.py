"""The pictures of the docs: each has words for those who don't see it, and those of real runs can be made again."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT, pages


def test_each_picture_has_words() -> None:
    """The page says what a picture shows."""
    for page in pages():
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / page).read_text()):
            assert len(words.split()) > 5, target


@pytest.mark.long
def test_a_timeline_is_of_a_real_run(tmp_path: Path) -> None:
    """A beat that is killed after its claim leaves the window to the other, which publishes it for a worker."""
    command = [sys.executable, "-m", "examples.ha_pair.timelines", str(tmp_path), "beat-dies"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    notes = (tmp_path / "beat-dies.svg").read_text().partition("</title>")[0]
    assert re.search(r"beat-1 is killed before .*beat-2 publishes it again.*worker-\d executes it", notes)
