"""Replay of VisionZip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from eadp.core import Selection, TowerAttention, VisualTokens
from eadp.methods.visionzip import VisionZip
from eadp.models.anyres import mosaic
from eadp.models.vision_call import TowerRows
from eadp.parity.vectors import GoldenVector
from eadp.runtime.merge import Merge


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run VisionZip on the vector's inputs and return its outputs by name.

    Each crop is pruned alone for the outputs per crop, then all crops together for the rows that the language model
    receives.
    """
    settings = vector.settings
    keep, dominant, crops = settings["K"], settings["dominant"], settings["crops"]
    method = VisionZip(keep=keep, contextual=settings["contextual"])
    per_crop = [(tokens, method.select(tokens)) for tokens in (_build_tokens(vector, [crop]) for crop in range(crops))]
    rows = torch.stack([cast(Tensor, selection.rows) for _, selection in per_crop])
    all_tokens = _build_tokens(vector, range(crops))
    all_selected = VisionZip(keep=keep * crops, contextual=settings["contextual"]).select(all_tokens)
    return {
        "dominant": rows[:, 1:dominant],
        "targets": rows[:, dominant:],
        "assigned_to": torch.stack([_assigned_targets(selection, dominant) for _, selection in per_crop]),
        "rows_hidden": torch.stack([_merge_in_tower(tokens, selection) for tokens, selection in per_crop]),
        "rows": _received_rows(vector, all_tokens, all_selected),
    }


def _build_tokens(vector: GoldenVector, crops: Sequence[int]) -> VisualTokens:
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


def _merge_in_tower(tokens: VisualTokens, selection: Selection) -> Tensor:
    """Return the merged rows before the projector, in the language model's order."""
    return cast(Tensor, selection.merge) @ torch.cat([cast(Tensor, tokens.tower), cast(Tensor, tokens.tower_cls)])


def _assigned_targets(selection: Selection, dominant: int) -> Tensor:
    """Return the target that each of the N tokens is merged into; −1 for dominant tokens and targets."""
    targets = cast(Tensor, selection.rows)[dominant:]
    merge = cast(Tensor, selection.merge)[dominant:, : selection.total]
    assigned = torch.full((selection.total,), -1)
    for target, members in zip(targets, merge, strict=True):
        assigned[members != 0] = target
    assigned[targets] = -1
    return assigned


def _received_rows(vector: GoldenVector, tokens: VisualTokens, selection: Selection) -> Tensor:
    """Return the rows that the language model receives."""
    tower, weights = TowerRows(cast(Tensor, tokens.tower), tokens.tower_cls), cast(Tensor, selection.merge)
    columns = torch.arange(len(tokens))
    merge = Merge(0, columns, selection.indices, weights, rows=selection.rows, tower=tower, project=vector.project)
    return merge.merged_rows(tokens.features)
