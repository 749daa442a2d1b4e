"""All six ways, side by side: ``python -m examples.ways``, or ``make examples``."""

from __future__ import annotations

import sys

from .a_lock_row.__main__ import WAY as A
from .b_hash.__main__ import WAY as B
from .c_set_nx.__main__ import WAY as C
from .command import main
from .d_half_hours.__main__ import WAY as D
from .e_unique_key.__main__ import WAY as E
from .f_one_beat.__main__ import WAY as F

if __name__ == "__main__":
    sys.exit(main([A, B, C, D, E, F]))
