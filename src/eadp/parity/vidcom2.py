"""Replay of VidCom2, as released and as vLLM has it."""

from __future__ import annotations

from typing import Any

import torch

from eadp.core import Grid, Selection
from eadp.methods.vidcom2 import VidCom2
from eadp.parity.clips import build_clip, merged_grid
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run VidCom2 on the vector's inputs and return its outputs by name."""
    settings = vector.settings
    if settings["variant"] == "vllm":
        method, grid = VidCom2(keep=1 - settings["q"], form="vllm"), merged_grid(vector, settings["thw"])
    else:
        method, grid = VidCom2(keep=settings["base_scale"]), tuple(settings["grid"])
    tokens = build_clip(vector["video_embeds"], grid)
    selection, found = method.select(tokens), method.score(tokens)
    return {
        "low_var_channels": found.channels.sort().values,
        "video_score": found.clip,
        "frame_score": found.frame,
        "scales": found.shares,
        "frame_k": found.quotas,
        "kept": selection.indices,
        "per_frame": torch.tensor(selection.quotas),
        "kept_with_newlines": _with_newlines(selection, grid),
    }


def _with_newlines(selection: Selection, grid: Grid) -> torch.Tensor:
    """Return the kept tokens of each frame, then its newlines, counted with a newline after each row."""
    rows, columns = grid
    found = []
    for frame in range(len(selection.quotas)):
        place = selection.indices[selection.indices // (rows * columns) == frame] % (rows * columns)
        newlines = torch.arange(1, rows + 1) * (columns + 1) - 1
        found.append(torch.cat([place + place // columns, newlines]) + frame * rows * (columns + 1))
    return torch.cat(found)
