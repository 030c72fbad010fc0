"""The mathematics: pure tensors, nothing of transformers, each formula of the paper by its name."""

from eadp.core.types import Box, Grid, Layout, Relevance, Selection, TextGuide, VisualTokens

__all__ = ["Box", "Grid", "Layout", "Relevance", "Selection", "TextGuide", "VisualTokens"]
