"""What is installed with the package, and what CI runs: nothing with a fault that is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("package", "faulty"),
    [
        ("starlette", "1.0.0"),  # CVE-2026-48710
        ("h11", "0.15.0"),  # CVE-2025-43859
        ("jinja2", "3.1.5"),  # CVE-2025-27516
        ("redis", "4.5.3"),  # CVE-2023-28859
    ],
)
def test_no_release_with_a_known_fault_is_admitted(package: str, faulty: str) -> None:
    """The floor of each requirement is above the last release that has the fault."""
    (floor,) = re.findall(rf'^ *"{package}>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert [*map(int, floor.split("."))] > [*map(int, faulty.split("."))]


def test_actions_are_pinned_by_commit_and_kept_new() -> None:
    """A tag can be moved to other code; dependabot proposes the next commit."""
    for workflow in (ROOT / ".github/workflows").iterdir():
        used = re.findall(r"^.*\buses: *(.+)$", workflow.read_text(), re.MULTILINE)
        assert used
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+(\.\d+)+", action) for action in used), used
    kept = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    assert "github-actions" in {each["package-ecosystem"] for each in kept}
