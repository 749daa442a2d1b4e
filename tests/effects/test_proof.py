"""What is recorded is written once, whatever strikes its body: ``make effects``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from databases import Base
from proof import Proof, fill
from system import System


@pytest.mark.long
def test_recorded_rows_are_there_once(
    system: System, new_base: Callable[..., Base], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Bodies are killed and frozen at each point: each window's rows are there once. Without record some are twice."""
    proof = Proof(system, new_base("postgres"), tmp_path)
    proof.run(request.config.getoption("faults"))
    print(proof.text())
    windows, unrecorded, calls = proof.verdicts()
    for recorded in (windows, calls):
        assert not recorded.missing
        assert not recorded.doubled
    assert not unrecorded.missing
    assert unrecorded.doubled, "nothing is written twice without record: the check isn't shown to be able to fail"
    folder = request.config.getoption("report")
    if folder:
        fill(Path(folder, "effects.md"), proof.text())
