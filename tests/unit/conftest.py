"""The unit tests run in a time zone of its own kind: what takes a time for the machine's shows."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _far_from_utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        yield
    time.tzset()
