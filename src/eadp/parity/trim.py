"""Replay of TRIM."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core import TextGuide, VisualTokens
from eadp.methods.trim import TRIM
from eadp.models.vision_call import TowerRows
from eadp.parity.vectors import GoldenVector
from eadp.runtime.merge import Merge


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run TRIM on the vector's inputs and return its outputs by name."""
    settings, hidden = vector.settings, vector["hidden"]
    normed = F.layer_norm(hidden, hidden.shape[-1:], vector["ln_weight"], vector["ln_bias"], eps=1e-5)
    aligned, features = F.linear(normed, vector["visual_projection"]), vector.project(hidden)
    tokens = VisualTokens(features, aligned, [tuple(settings["grid"])], tower=hidden)
    text = TextGuide(None, vector["text_pooled"], sign=settings["sign"])
    ratio = settings["ratio"]
    selection = TRIM(keep=None if ratio == -1 else float(ratio)).select(tokens, text)
    merge, tower, columns = cast(Tensor, selection.merge), TowerRows(hidden), torch.arange(len(tokens))
    merged = Merge(0, columns, selection.indices, merge, rows=selection.rows, tower=tower, project=vector.project)
    return {
        "image_embeds": aligned,
        "scores": selection.scores,
        "kept": cast(Tensor, selection.rows)[:-1],
        "rows_hidden": merge @ hidden,
        "rows": merged.merged_rows(features),
        "count": len(selection),
    }
