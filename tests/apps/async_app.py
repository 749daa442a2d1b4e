"""A coroutine that runs once a window: ``python -m apps.async_app KEY SECONDS``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from ledger import Ledger

from celery_once_beat import once
from celery_once_beat.windows import format_instant

ledger = Ledger(os.environ["LEDGER"])


async def main(key: str, seconds: float) -> None:
    async with once(key, every="366d", url=os.environ["STORE_URL"], lease=3.0) as window:
        if window is None:
            ledger.write("refused", entry=key)
            return
        fields = {"entry": key, "start": format_instant(window.start), "fence": window.fence}
        ledger.write("start", **fields)
        await asyncio.sleep(seconds)
        ledger.write("finish", held=window.held, **fields)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
