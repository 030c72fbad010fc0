"""The mathematics of token pruning on plain tensors, independent of any model.

Where to find the equations of the EADP paper:

| paper | here |
|---|---|
| Eq. 2, global guidance score S^G | `relevance`, result `global_score` |
| Eq. 3, cosine similarity c_ij | `relevance`, result `similarity` |
| Eq. 4, distribution p_ij | `word_distribution` in `word_weights.py` |
| Eq. 5, entropy h_i | `entropy` in `word_weights.py` |
| Eq. 6, retained words T' | `filter_words` in `word_weights.py` |
| Eq. 7, word weights α_i | `neg_entropy` in `word_weights.py`; ablations in `AGGREGATIONS` |
| Eq. 8, dense guidance score S^D | `relevance`, result `dense_score` |
| Eq. 9, fusion with μ | `relevance`, result `fused` |
| Eq. 10, min-max normalization | `min_max` in `scoring.py` |
| Eq. 11, Gaussian smoothing | `smooth` |
| Eq. 12, score polarization | `polarize` |
| Eq. 13 and 14, facility location and marginal gain | `facility_location` |
| Supplement, visual similarity rebound | `token_similarity` |
| Supplement, dynamic quota allocation | `allocate` |
| Algorithm 1 | `eadp.methods.eadp.EADP.select` |
"""

from eadp.core import trace
from eadp.core.block_cover import BlockCover, cover_blocks
from eadp.core.blocks import facility_location_by_coverage, facility_location_by_quota
from eadp.core.cells import even_cells, largest_grid, regular_cells
from eadp.core.density import density_peaks, density_scores
from eadp.core.diversity import OrderedPicks, dpp, dpp_by_quota, max_min, max_min_by_quota
from eadp.core.facility import FacilityLocationResult, coverage_of, facility_location
from eadp.core.frames import cut_segments, neighbour_cosine
from eadp.core.greedy_coverage import greedy_coverage
from eadp.core.quotas import allocate, split_evenly
from eadp.core.ranking import outliers, rank_descending
from eadp.core.relevance import relevance, relevance_of_images
from eadp.core.scoring import Scoring
from eadp.core.similarity import (
    DEFAULT_MATRIX_LIMIT,
    LazySimilarity,
    build_similarity,
    token_cosine,
    token_similarity,
)
from eadp.core.smoothing import polarize, smooth, smooth_and_polarize, smooth_maps
from eadp.core.temporal import facility_location_over_time
from eadp.core.types import (
    Box,
    Grid,
    Layout,
    MergeSpace,
    Relevance,
    Selection,
    TextGuide,
    TextLayout,
    TowerAttention,
    VisualTokens,
)
from eadp.core.word_weights import AGGREGATIONS, DISPERSIONS, Aggregation

__all__ = [
    "AGGREGATIONS",
    "DEFAULT_MATRIX_LIMIT",
    "DISPERSIONS",
    "Aggregation",
    "BlockCover",
    "Box",
    "FacilityLocationResult",
    "Grid",
    "Layout",
    "LazySimilarity",
    "MergeSpace",
    "OrderedPicks",
    "Relevance",
    "Scoring",
    "Selection",
    "TextGuide",
    "TextLayout",
    "TowerAttention",
    "VisualTokens",
    "allocate",
    "build_similarity",
    "cover_blocks",
    "coverage_of",
    "cut_segments",
    "density_peaks",
    "density_scores",
    "dpp",
    "dpp_by_quota",
    "even_cells",
    "facility_location",
    "facility_location_by_coverage",
    "facility_location_by_quota",
    "facility_location_over_time",
    "greedy_coverage",
    "largest_grid",
    "max_min",
    "max_min_by_quota",
    "neighbour_cosine",
    "outliers",
    "polarize",
    "rank_descending",
    "regular_cells",
    "relevance",
    "relevance_of_images",
    "smooth",
    "smooth_and_polarize",
    "smooth_maps",
    "split_evenly",
    "token_cosine",
    "token_similarity",
    "trace",
]
