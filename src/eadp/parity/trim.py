"""TRIM on its golden vectors."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core import TextGuide, VisualTokens
from eadp.methods.trim import TRIM
from eadp.models.vision_call import TowerRows
from eadp.parity.vectors import Vector
from eadp.runtime.merge import Merge


def replay(vector: Vector) -> dict[str, Any]:
    settings, hidden = vector.settings, vector["hidden"]
    normed = F.layer_norm(hidden, hidden.shape[-1:], vector["ln_weight"], vector["ln_bias"], eps=1e-5)
    aligned, features = F.linear(normed, vector["visual_projection"]), vector.project(hidden)
    tokens = VisualTokens(features, aligned, [tuple(settings["grid"])], tower=hidden)
    text = TextGuide(None, vector["text_pooled"], sign=settings["sign"])
    ratio = settings["ratio"]
    found = TRIM(keep=None if ratio == -1 else float(ratio)).select(tokens, text)
    merge, tower = cast(Tensor, found.merge), TowerRows(hidden)
    sent = Merge(
        0, torch.arange(len(tokens)), found.indices, merge, rows=found.rows, tower=tower, project=vector.project
    )
    return {
        "image_embeds": aligned,
        "scores": found.scores,
        "kept": cast(Tensor, found.rows)[:-1],
        "rows_hidden": merge @ hidden,
        "rows": sent.merged_rows(features),
        "count": len(found),
    }
