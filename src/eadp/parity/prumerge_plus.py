"""Replay of PruMerge+."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from eadp.core import TowerAttention, VisualTokens, outliers
from eadp.methods.prumerge import PruMerge
from eadp.models.vision_call import TowerRows
from eadp.parity.vectors import GoldenVector
from eadp.runtime.merge import Merge
from eadp.runtime.probe import AttentionInputs
from eadp.runtime.vision import compute_tower_layer


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run PruMerge+ on the vector's inputs and return its outputs by name."""
    settings, hidden = vector.settings, vector["hidden"]
    query, key = (vector[name][None, None] for name in ("queries", "keys"))
    inputs = AttentionInputs(query, key, query.shape[-1] ** -0.5)
    layer = compute_tower_layer(inputs, settings["tower_layer"], settings["depth"], has_cls=True, needs_received=False)
    cls, full_width = (cast(Tensor, row)[0] for row in (layer.cls, layer.cls_full_width))
    attention = TowerAttention(layer.layer, layer.depth, layer.keys[0], cls, cls_full_width=full_width)
    features, grid = vector.project(hidden[1:]), tuple(settings["grid"])
    tokens = VisualTokens(features, None, [grid], attention=[attention], tower=hidden[1:], tower_cls=hidden[:1])
    method = PruMerge(neighbours=settings["neighbours"])
    selection = method.select(tokens)
    scores, merge = cast(Tensor, selection.scores), cast(Tensor, selection.merge)
    rows = cast(Tensor, selection.rows)[:-1]
    outlier_count = int(outliers(scores).sum())
    neighbour_weights = merge[:-1].clone()
    neighbour_weights[torch.arange(len(rows)), rows] = 0
    tower, columns = TowerRows(hidden[1:], hidden[:1]), torch.arange(len(tokens))
    merged = Merge(0, columns, selection.indices, merge, rows=selection.rows, tower=tower, project=vector.project)
    return {
        "attention": scores,
        "outliers": rows[:outlier_count],
        "even": rows[outlier_count:],
        "step": method.sampling_step(outlier_count / len(tokens)),
        "kept": rows.sort().values,
        "rows_index": rows,
        "neighbours": neighbour_weights.nonzero()[:, 1].view(len(rows), -1),
        "rows_hidden": merge @ hidden[1:],
        "rows": merged.merged_rows(features),
        "count": len(selection),
    }
