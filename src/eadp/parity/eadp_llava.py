"""EADP on LLaVA-1.5 and LLaVA-NeXT, and its ablations, which share their arrays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eadp.core import Relevance, Selection, TextGuide, VisualTokens, relevance
from eadp.methods.eadp import EADP
from eadp.models.anyres import mosaic
from eadp.parity.vectors import Vector

AGGREGATIONS = {
    "negative_entropy": "neg_entropy",
    "entropy_tempered": "inverse_entropy",
    "top_k": "topk",
    "entropy_aware_gate": "gated",
}
EACH_TOKEN = ("inverse_entropy", "inverse_entropy_flat", "topk")
"""Aggregations whose weights the release keeps for each token."""
ALLOCATIONS = {"importance_based": "importance", "global_guided": "global_guided"}
SELECTIONS = {"facility_location": "facility_location", "submodular": "facility_location", "topk": "topk", "dpp": "dpp"}


def settings_of(vector: Vector) -> dict[str, Any]:
    """The release's names for its settings as ours."""
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


def visual_tokens(vector: Vector) -> VisualTokens:
    """Crops of one image, projected, with the same tokens in the space of the text where the vector has them."""
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


def replay(vector: Vector) -> dict[str, Any]:
    given, tokens = vector.settings, visual_tokens(vector)
    text = TextGuide(list(vector["text_tokens"]), list(vector["text_pooled"]), sign=given["sign"])
    settings = settings_of(vector) | {
        "allocation": ALLOCATIONS[given.get("strategy", "importance_based")],
        "selection": SELECTIONS[given.get("selection", "facility_location")],
    }
    budget = given.get("budget", given["K"])
    method = EADP.published(budget, "llava" if len(tokens.grids) == 1 else "llava_next", **settings)
    selection = method.select(tokens, text)
    found = selection.relevance
    assert found is not None
    blocks, segments = len(tokens.grids), len(vector["text_tokens"])
    in_order = tokens.in_sequence(selection.indices)
    order, gains = picked_by_block(selection, tokens)
    return {
        **stages(found, blocks, segments, each_token=method.aggregation in EACH_TOKEN),
        "global_sim": torch.stack([_alone(tokens, vector, each) for each in vector["text_pooled"]], dim=-1),
        "order": order,
        "gains": gains,
        "quotas": torch.tensor(selection.quotas),
        "kept": selection.indices,
        "rows_index": in_order,
        "rows": tokens.features[in_order],
    }


def stages(found: Relevance, blocks: int, segments: int, each_token: bool = False) -> dict[str, Any]:
    """Every intermediate, block by block. each_token: words weigh something else in each token."""
    dense = (found.weights * found.similarity).unflatten(0, (segments, -1)).sum(1)
    kept, weights = kept_words(found, blocks, segments)
    maps = {"fused": found.fused, "minmax": found.score, "smoothed": found.smoothed, "importance": found.polarized}
    return {
        "entropy": found.entropy.T.unflatten(1, (segments, -1)),
        "kept_words": kept,
        "word_weights": weights if each_token else weights[:, 0],
        "dense": dense.T.unflatten(0, (blocks, -1)),
        **{name: None if each is None else each.unflatten(0, (blocks, -1)) for name, each in maps.items()},
    }


def kept_words(found: Relevance, blocks: int, segments: int) -> tuple[Tensor, Tensor]:
    """blocks×segments×k slots that stay, lowest entropy first, and what they weigh in each token,
    blocks×N×segments×k."""
    per_block = found.entropy.T.unflatten(1, (segments, -1)).masked_fill(
        ~found.kept.T.unflatten(1, (segments, -1)), torch.inf
    )
    count = int(found.kept.sum()) // (blocks * segments)
    order = per_block.argsort(dim=-1, stable=True)[..., :count]
    weights = found.weights.T.unflatten(0, (blocks, -1)).unflatten(2, (segments, -1))
    return order, weights.gather(3, order[:, None].expand(-1, weights.shape[1], -1, -1))


def picked_by_block(selection: Selection, tokens: VisualTokens) -> tuple[Tensor, Tensor]:
    """blocks×(largest quota) picks in turn, counted within the block, and their gains; filled with −1 and 0."""
    assert selection.order is not None
    longest = max(selection.quotas)
    order = torch.full((len(tokens.blocks), longest), -1)
    gains = torch.zeros(len(tokens.blocks), longest, dtype=torch.float64)
    for p, block in enumerate(tokens.blocks):
        here = (selection.order >= block.start) & (selection.order < block.stop)
        picks = selection.order[here] - block.start
        order[p, : len(picks)] = picks
        if selection.gains is not None:
            gains[p, : len(picks)] = selection.gains[here].double()
    return order, gains


def _alone(tokens: VisualTokens, vector: Vector, pooled: Tensor) -> Tensor:
    """The similarity with one segment's pooled text, blocks×N."""
    assert tokens.aligned is not None
    found = relevance(tokens.aligned, None, pooled, sign=vector.settings["sign"])
    assert found.global_score is not None
    return found.global_score.unflatten(0, (len(tokens.grids), -1))
