"""The mathematics: pure tensors, nothing of transformers, each formula of the paper by its name."""

from eadp.core import trace
from eadp.core.blocks import cover_by_quota, cover_by_share
from eadp.core.cells import even_cells, largest_grid, regular_cells
from eadp.core.density import density_peaks
from eadp.core.diversity import Picks, dpp, dpp_by_quota, max_min, max_min_by_quota
from eadp.core.facility import FacilityLocation, facility_location
from eadp.core.quotas import alike, allocate
from eadp.core.ranking import outliers, ranked
from eadp.core.relevance import AGGREGATIONS, DISPERSIONS, Aggregation, Scoring, relevance
from eadp.core.similarity import DENSE_LIMIT, CosineRows, similarity_within, token_cosine, token_similarity
from eadp.core.smoothing import polarize, smooth, smooth_maps
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

__all__ = [
    "AGGREGATIONS",
    "DENSE_LIMIT",
    "DISPERSIONS",
    "Aggregation",
    "Box",
    "CosineRows",
    "FacilityLocation",
    "Grid",
    "Layout",
    "MergeSpace",
    "Picks",
    "Relevance",
    "Scoring",
    "Selection",
    "TextGuide",
    "TextLayout",
    "TowerAttention",
    "VisualTokens",
    "alike",
    "allocate",
    "cover_by_quota",
    "cover_by_share",
    "density_peaks",
    "dpp",
    "dpp_by_quota",
    "even_cells",
    "facility_location",
    "largest_grid",
    "max_min",
    "max_min_by_quota",
    "outliers",
    "polarize",
    "ranked",
    "regular_cells",
    "relevance",
    "similarity_within",
    "smooth",
    "smooth_maps",
    "token_cosine",
    "token_similarity",
    "trace",
]
