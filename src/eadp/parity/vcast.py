"""Replay of V-CAST. A vector may have several clips."""

from __future__ import annotations

from typing import Any

import torch

from eadp.methods.vcast import VCAST
from eadp.parity.clips import build_clip, merged_grid
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run V-CAST on the vector's inputs and return its outputs by name."""
    settings, start = vector.settings, 0
    method = VCAST(keep=settings["retain_ratio"], at_least=settings["min_k"], temperature=settings["temperature"])
    found: dict[str, list[torch.Tensor]] = {name: [] for name in ("kept", "curvature", "weights", "frame_k", "score")}
    for patches in settings["grid_thw"]:
        rows, columns = grid = merged_grid(vector, patches)
        stop = start + patches[0] * rows * columns
        tokens = build_clip(vector["video_embeds"][start:stop], grid)
        selection, parts = method.select(tokens), method.score(tokens)
        # The release scores no tokens of a clip that it keeps whole.
        scores = parts.scores if patches[0] > 1 else torch.zeros_like(parts.scores)
        outputs = (selection.indices + start, parts.curvature, parts.weights, parts.quotas, scores)
        for name, output in zip(found, outputs, strict=True):
            found[name].append(output)
        start = stop
    joined = {name: torch.cat(parts) for name, parts in found.items()}
    deepstack = {
        f"{name}_kept": vector[name][joined["kept"]] for name in settings["inputs"] if name.startswith("deepstack")
    }
    return joined | deepstack
