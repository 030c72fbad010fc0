"""Replay of FastVID on LLaVA-OneVision. The vectors give the outputs of SigLIP's pooling head."""

from __future__ import annotations

from typing import Any

import torch

from eadp.methods.fastvid import FastVID
from eadp.parity.clips import build_clip, lengths, sent_rows
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run FastVID on the vector's inputs and return its outputs by name."""
    given = vector.settings
    method = FastVID(
        keep=given["retention_ratio"],
        segments=given["c"],
        threshold=given["tau"],
        context=given["d"],
        step=given["p"],
        beta=given["beta"],
    )
    tokens = build_clip(vector["video_embeds"], tuple(given["grid"]), vector["frame_attention"], vector["frame_global"])
    selection, found = method.select(tokens), method.group_tokens(tokens)
    return {
        "segments": lengths(found.segments),
        "salient": found.salient,
        "candidates": found.others,
        "density_score": found.density,
        "context_per_frame": torch.tensor(found.anchors),
        "kept": selection.indices,
        "rows": sent_rows(tokens, selection),
    }
