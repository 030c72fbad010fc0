"""Loops compiled by numba: greedy facility location (of an image and of a clip), DPP and max-min on the CPU.

Elementwise passes run over contiguous rows, so that they vectorize. Sums run in the order of the index, so that a value
that is computed twice is the same to the last bit. `tie` is `eadp.core.ties.TIE_MARGIN`; `noise` is `ROUNDING_NOISE` at
the scale of the data.
"""

from eadp.core.kernels.diversity import dpp_greedy, max_min_greedy
from eadp.core.kernels.facility import facility_greedy, facility_greedy_blocks
from eadp.core.kernels.scan import is_symmetric
from eadp.core.kernels.temporal import temporal_greedy

__all__ = [
    "dpp_greedy",
    "facility_greedy",
    "facility_greedy_blocks",
    "is_symmetric",
    "max_min_greedy",
    "temporal_greedy",
]
