"""VisionZip on its golden vectors."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from eadp.core import Selection, TowerAttention, VisualTokens
from eadp.methods.visionzip import VisionZip
from eadp.models.anyres import mosaic
from eadp.models.vision_call import TowerRows
from eadp.parity.vectors import Vector
from eadp.runtime.merge import Merge


def replay(vector: Vector) -> dict[str, Any]:
    """Crop by crop for what each of them does, then all of them together for the rows that are sent."""
    settings = vector.settings
    keep, dominant, crops = settings["K"], settings["dominant"], settings["crops"]
    method = VisionZip(keep=keep, contextual=settings["contextual"])
    alone = [(tokens, method.select(tokens)) for tokens in (_tokens(vector, [crop]) for crop in range(crops))]
    rows = torch.stack([cast(Tensor, found.rows) for _, found in alone])
    together = _tokens(vector, range(crops))
    sent = VisionZip(keep=keep * crops, contextual=settings["contextual"]).select(together)
    return {
        "dominant": rows[:, 1:dominant],
        "targets": rows[:, dominant:],
        "assigned_to": torch.stack([_assigned(found, dominant) for _, found in alone]),
        "rows_hidden": torch.stack([_merged(tokens, found) for tokens, found in alone]),
        "rows": _received(vector, together, sent),
    }


def _tokens(vector: Vector, crops: Any) -> VisualTokens:
    crops = list(crops)
    grid, hidden = tuple(vector.settings["grid"]), vector["hidden"][crops]
    keys = vector["keys"][crops][:, :, 1:].transpose(1, 2).flatten(0, 1)
    cls = vector["cls_attention"][crops].mean(1).flatten()
    layout = tuple(vector.settings["layout"]) if len(crops) > 1 else None
    return VisualTokens(
        vector.project(hidden[:, 1:].flatten(0, 1)),
        None,
        [grid] * len(crops),
        layout,
        [TowerAttention(22, 24, keys, cls)],
        tower=hidden[:, 1:].flatten(0, 1),
        tower_cls=hidden[:, 0],
        sequence=None if layout is None else mosaic(grid, layout),
    )


def _merged(tokens: VisualTokens, found: Selection) -> Tensor:
    """Before the projector, in the language model's order."""
    return cast(Tensor, found.merge) @ torch.cat([cast(Tensor, tokens.tower), cast(Tensor, tokens.tower_cls)])


def _assigned(found: Selection, dominant: int) -> Tensor:
    """N, the target that each token joined; −1 for dominant ones and targets."""
    targets, merge = cast(Tensor, found.rows)[dominant:], cast(Tensor, found.merge)[dominant:, : found.total]
    assigned = torch.full((found.total,), -1)
    for target, members in zip(targets, merge, strict=True):
        assigned[members != 0] = target
    assigned[targets] = -1
    return assigned


def _received(vector: Vector, tokens: VisualTokens, found: Selection) -> Tensor:
    tower, weights = TowerRows(cast(Tensor, tokens.tower), tokens.tower_cls), cast(Tensor, found.merge)
    columns = torch.arange(len(tokens))
    merge = Merge(0, columns, found.indices, weights, rows=found.rows, tower=tower, project=vector.project)
    return merge.merged_rows(tokens.features)
