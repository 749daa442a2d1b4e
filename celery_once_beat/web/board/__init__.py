"""The window board: a page that shows each entry as a row and its recent windows as cells, live. It only reads.

``words`` says things as people do, ``page`` is what the page shows, ``feed`` looks and tells the viewers what changed,
``guard`` says who may ask, ``site`` answers, ``server`` listens. Needs the extra ``dashboard``.
"""

from __future__ import annotations

__all__ = ()
