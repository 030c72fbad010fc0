"""Replay of EADP on LLaVA-1.5 and LLaVA-NeXT. Its ablations have the same arrays and use this module too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eadp.core import Relevance, Selection, TextGuide, VisualTokens, relevance
from eadp.methods.eadp import EADP
from eadp.models.anyres import mosaic
from eadp.parity.vectors import GoldenVector

AGGREGATIONS = {
    "negative_entropy": "neg_entropy",
    "entropy_tempered": "inverse_entropy",
    "top_k": "topk",
    "entropy_aware_gate": "gated",
}
"""The release's names of aggregations and ours."""

PER_TOKEN_AGGREGATIONS = ("inverse_entropy", "inverse_entropy_flat", "topk")
"""Aggregations for which the release returns separate word weights per token."""

ALLOCATIONS = {"importance_based": "importance", "global_guided": "global_guided"}
"""The release's names of allocation rules and ours."""

SELECTIONS = {"facility_location": "facility_location", "submodular": "facility_location", "topk": "topk", "dpp": "dpp"}
"""The release's names of selections and ours."""


def eadp_settings(vector: GoldenVector) -> dict[str, Any]:
    """Translate the release's settings into settings of `EADP`."""
    given = vector.settings
    aggregation = AGGREGATIONS[given["aggregation"]]
    flat = aggregation == "inverse_entropy" and not given.get("with_similarity", 1)
    return {
        "mu": given["alpha"],
        "beta": given["beta"],
        "tau": 1 / given["T"],
        "q": given["keep_ratio"],
        "gamma": given["M_temp"] + (1e-6 if aggregation == "neg_entropy" else 0),
        "aggregation": "inverse_entropy_flat" if flat else aggregation,
        "theta": given.get("theta", 1.0),
        "top_words": given.get("k_local", 5),
        "smoothing": given["kernel"] or 1,
        "sigma": given["sigma"],
    }


def image_tokens(vector: GoldenVector) -> VisualTokens:
    """Build the projected tokens of one image, one block per crop, with their text-aligned embeddings if given."""
    hidden = vector["hidden"]
    crops, grid = hidden.shape[0], tuple(vector.settings["grid"])
    layout = tuple(vector.settings["layout"]) if crops > 1 else None
    return VisualTokens(
        vector.project(hidden).flatten(0, 1),
        vector["image_embeds"].flatten(0, 1) if "image_embeds" in vector else None,
        [grid] * crops,
        layout,
        sequence=None if layout is None else mosaic(grid, layout),
    )


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run EADP on the vector's inputs and return its outputs by name."""
    given, tokens = vector.settings, image_tokens(vector)
    text = TextGuide(list(vector["text_tokens"]), list(vector["text_pooled"]), sign=given["sign"])
    settings = eadp_settings(vector) | {
        "allocation": ALLOCATIONS[given.get("strategy", "importance_based")],
        "selection": SELECTIONS[given.get("selection", "facility_location")],
    }
    budget = given.get("budget", given["K"])
    method = EADP.published(budget, "llava" if len(tokens.grids) == 1 else "llava_next", **settings)
    selection = method.select(tokens, text)
    assert selection.relevance is not None
    blocks, segments = len(tokens.grids), len(vector["text_tokens"])
    in_order = tokens.in_sequence(selection.indices)
    order, gains = picks_per_block(selection, tokens)
    return {
        **stage_outputs(selection.relevance, blocks, segments, method.aggregation in PER_TOKEN_AGGREGATIONS),
        "global_sim": torch.stack([_global_score(tokens, vector, each) for each in vector["text_pooled"]], dim=-1),
        "order": order,
        "gains": gains,
        "quotas": torch.tensor(selection.quotas),
        "kept": selection.indices,
        "rows_index": in_order,
        "rows": tokens.features[in_order],
    }


def stage_outputs(result: Relevance, blocks: int, segments: int, weights_per_token: bool = False) -> dict[str, Any]:
    """Return every intermediate result in the release's shapes.

    Args:
        result: Our intermediate results.
        blocks: Number of blocks, all of the same size.
        segments: Number of text segments, all of the same length.
        weights_per_token: Whether the word weights differ from token to token.

    Returns:
        The release's outputs by name, with the blocks as the first dimension.
    """
    dense = (result.weights * result.similarity).unflatten(0, (segments, -1)).sum(1)
    kept, weights = kept_words(result, blocks, segments)
    maps = {
        "fused": result.fused,
        "minmax": result.score,
        "smoothed": result.smoothed,
        "importance": result.polarized,
    }
    return {
        "entropy": result.entropy.T.unflatten(1, (segments, -1)),
        "kept_words": kept,
        "word_weights": weights if weights_per_token else weights[:, 0],
        "dense": dense.T.unflatten(0, (blocks, -1)),
        **{name: None if each is None else each.unflatten(0, (blocks, -1)) for name, each in maps.items()},
    }


def kept_words(result: Relevance, blocks: int, segments: int) -> tuple[Tensor, Tensor]:
    """Return the kept words and their weights.

    Returns:
        blocks×segments×k, the positions of the kept words in their segment, lowest entropy first; and
        blocks×N×segments×k, their weights for each of the N tokens of a block.
    """
    entropy = result.entropy.T.unflatten(1, (segments, -1))
    kept_entropy = entropy.masked_fill(~result.kept.T.unflatten(1, (segments, -1)), torch.inf)
    count = int(result.kept.sum()) // (blocks * segments)
    order = kept_entropy.argsort(dim=-1, stable=True)[..., :count]
    weights = result.weights.T.unflatten(0, (blocks, -1)).unflatten(2, (segments, -1))
    return order, weights.gather(3, order[:, None].expand(-1, weights.shape[1], -1, -1))


def picks_per_block(selection: Selection, tokens: VisualTokens) -> tuple[Tensor, Tensor]:
    """Return the picks of each block in order, and their gains.

    Returns:
        blocks×(largest quota), the indices within the block, padded with −1; and the gains, padded with 0.
    """
    assert selection.order is not None
    longest = max(selection.quotas)
    order = torch.full((len(tokens.blocks), longest), -1)
    gains = torch.zeros(len(tokens.blocks), longest, dtype=torch.float64)
    for p, block in enumerate(tokens.blocks):
        in_block = (selection.order >= block.start) & (selection.order < block.stop)
        picks = selection.order[in_block] - block.start
        order[p, : len(picks)] = picks
        if selection.gains is not None:
            gains[p, : len(picks)] = selection.gains[in_block].double()
    return order, gains


def _global_score(tokens: VisualTokens, vector: GoldenVector, pooled: Tensor) -> Tensor:
    """Compute the similarity of each token to one segment's pooled text, blocks×N."""
    assert tokens.aligned is not None
    result = relevance(tokens.aligned, None, pooled, sign=vector.settings["sign"])
    assert result.global_score is not None
    return result.global_score.unflatten(0, (len(tokens.grids), -1))
