"""The mathematics: pure tensors, nothing of transformers, each formula of the paper by its name."""

from eadp.core.blocks import cover_by_quota, cover_by_share
from eadp.core.diversity import Picks, dpp, max_min
from eadp.core.facility import FacilityLocation, facility_location
from eadp.core.quotas import allocate
from eadp.core.relevance import AGGREGATIONS, DISPERSIONS, relevance
from eadp.core.similarity import DENSE_LIMIT, CosineRows, similarity_within, token_similarity
from eadp.core.smoothing import polarize, smooth
from eadp.core.types import Box, Grid, Layout, Relevance, Selection, TextGuide, VisualTokens

__all__ = [
    "AGGREGATIONS",
    "DENSE_LIMIT",
    "DISPERSIONS",
    "Box",
    "CosineRows",
    "FacilityLocation",
    "Grid",
    "Layout",
    "Picks",
    "Relevance",
    "Selection",
    "TextGuide",
    "VisualTokens",
    "allocate",
    "cover_by_quota",
    "cover_by_share",
    "dpp",
    "facility_location",
    "max_min",
    "polarize",
    "relevance",
    "similarity_within",
    "smooth",
    "token_similarity",
]
