"""Replay of EVS, as vLLM has it."""

from __future__ import annotations

from typing import Any

import torch

from eadp.methods.evs import EVS
from eadp.parity.clips import build_clip, merged_grid
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run EVS on the vector's inputs and return its outputs by name."""
    settings = vector.settings
    rows, columns = grid = merged_grid(vector, settings["thw"])
    tokens = build_clip(vector["video_embeds"], grid)
    selection = EVS(keep=1 - settings["q"]).select(tokens)
    assert selection.scores is not None
    frame, place = selection.indices // (rows * columns), selection.indices % (rows * columns)
    seconds = frame * settings["tokens_per_second"] * settings["second_per_grid"]
    width = torch.full_like(frame, columns)
    return {
        "dissimilarity": selection.scores.view(len(tokens.grids), -1),
        "kept": selection.indices,
        "per_frame": torch.tensor(selection.quotas),
        "positions": torch.stack([seconds.long(), place // columns, place % columns, width], dim=1),
    }
