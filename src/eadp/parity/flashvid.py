"""Replay of FlashVID before the language model."""

from __future__ import annotations

from typing import Any

from eadp.core import neighbour_cosine
from eadp.methods.flashvid import FlashVID
from eadp.parity.clips import build_clip, lengths, row_tokens, sent_rows
from eadp.parity.vectors import GoldenVector

NEVER = -2.0
"""A threshold that no cosine is below, for clips that are not cut."""


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run FlashVID on the vector's inputs and return its outputs by name."""
    given = vector.settings
    is_cut = given["do_segment"]
    method = FlashVID(
        keep=given["retention_ratio"],
        alpha=given["alpha"],
        threshold=given["temporal_threshold"],
        expansion=given["expansion"],
        segments=given["min_segment_num"] if is_cut else 1,
        segment_threshold=given["segment_threshold"] if is_cut else NEVER,
        relevance=given["token_selection_method"] == "attn_div_v2",
    )
    tokens = build_clip(vector["video_embeds"], tuple(given["grid"]), vector["attention"])
    selection = method.select(tokens)
    return {
        "transition": neighbour_cosine(tokens.frames.mean(1)) if is_cut else [],
        "segments": lengths(method.cut(tokens)),
        "selected": method.select_per_frame(tokens),
        "kept": row_tokens(selection),
        "rows": sent_rows(tokens, selection),
    }
