"""The window board: a page that shows each entry as a row and its recent windows as cells, live.

Its modules, lowest first:

- ``words``: the words for names, times and states
- ``page``: what there is at one moment · ``axis``: the columns of time, and what stands in each
- ``choice``: which part of it an address asks for · ``grid``: the rows of that part
- ``feed``: looks again and again, and tells viewers what changed
- ``guard``: who may ask, and who may act · ``desk``: carries out orders · ``actions``: the pages on which people order
- ``site``: answers · ``server``: listens

Needs the extra ``dashboard``.
"""

from __future__ import annotations
