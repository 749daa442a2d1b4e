"""The window board: a page that shows each entry as a row and its recent windows as cells, live.

``words`` says things as people do, ``page`` is what the page shows, ``feed`` looks and tells the viewers what changed,
``guard`` says who may ask and who may act, ``desk`` takes orders, ``actions`` are their pages, ``site`` answers,
``server`` listens, ``mounted`` is it within another application. Needs the extra ``dashboard``.
"""

from __future__ import annotations

__all__ = ()
