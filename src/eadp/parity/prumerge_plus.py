"""PruMerge+ on its golden vectors."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from eadp.core import TowerAttention, VisualTokens, outliers
from eadp.methods.prumerge import PruMerge
from eadp.models.vision_call import TowerRows
from eadp.parity.vectors import Vector
from eadp.runtime.merge import Merge
from eadp.runtime.probe import AttentionInputs
from eadp.runtime.vision import compute_tower_layer


def replay(vector: Vector) -> dict[str, Any]:
    settings, hidden = vector.settings, vector["hidden"]
    query, key = (vector[name][None, None] for name in ("queries", "keys"))
    inputs = AttentionInputs(query, key, query.shape[-1] ** -0.5)
    layer = compute_tower_layer(inputs, settings["tower_layer"], settings["depth"], has_cls=True, needs_received=False)
    cls, full_width = (cast(Tensor, row)[0] for row in (layer.cls, layer.cls_full_width))
    attention = TowerAttention(layer.layer, layer.depth, layer.keys[0], cls, cls_full_width=full_width)
    features, grid = vector.project(hidden[1:]), tuple(settings["grid"])
    tokens = VisualTokens(features, None, [grid], attention=[attention], tower=hidden[1:], tower_cls=hidden[:1])
    method = PruMerge(neighbours=settings["neighbours"])
    found = method.select(tokens)
    scores, rows, merge = cast(Tensor, found.scores), cast(Tensor, found.rows)[:-1], cast(Tensor, found.merge)
    out = int(outliers(scores).sum())
    gained = merge[:-1].clone()
    gained[torch.arange(len(rows)), rows] = 0
    tower = TowerRows(hidden[1:], hidden[:1])
    sent = Merge(
        0, torch.arange(len(tokens)), found.indices, merge, rows=found.rows, tower=tower, project=vector.project
    )
    return {
        "attention": scores,
        "outliers": rows[:out],
        "even": rows[out:],
        "step": method.step(out / len(tokens)),
        "kept": rows.sort().values,
        "rows_index": rows,
        "neighbours": gained.nonzero()[:, 1].view(len(rows), -1),
        "rows_hidden": merge @ hidden[1:],
        "rows": sent.merged_rows(features),
        "count": len(found),
    }
