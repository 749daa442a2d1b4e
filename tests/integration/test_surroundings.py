"""What an application, or its machine, has set up around ours."""

from __future__ import annotations

import pytest
from system import System


@pytest.mark.long
def test_records_and_hashes_of_a_company(system: System) -> None:
    """Log records carry the names of our fields, and Python has the hashes of FIPS mode alone: all windows are done."""
    system.app = "apps.company_app"
    beats, workers = system.pair()
    system.wait_done(3)
    system.settle(beats)
    system.check_each_once()
    for process in (*beats, *workers):
        assert "a tick failed" not in process.log
        assert "Attempt to overwrite" not in process.log
