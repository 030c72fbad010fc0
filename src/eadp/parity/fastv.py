"""Replay of FastV. The vectors give the attention of the last token."""

from __future__ import annotations

from typing import Any

import torch

from eadp.methods.fastv import FastV
from eadp.methods.inside import DEPTH, Cut
from eadp.parity.sequence import GivenLayerView, compaction_keeping, image_positions
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run FastV on the vector's inputs and return its outputs by name."""
    settings = vector.settings
    method = FastV(keep=settings["K"], layers=(settings["agg_layer"],))
    cut = next(iter(method.cuts(settings["N"], DEPTH)), Cut(settings["agg_layer"], settings["N"]))
    image, hidden = image_positions(vector), vector["hidden"]
    view = GivenLayerView(visual=hidden[image], weights=vector["attention"].mean(0, keepdim=True)[:, image])
    chosen = method.choose(cut, view)
    compaction = compaction_keeping(vector, chosen.indices)
    return {
        "scores": chosen.scores,
        "kept": chosen.indices,
        "position_ids": compaction.take_columns(torch.arange(len(hidden))[None])[0],
        "rows": compaction.take_rows(hidden[None])[0],
    }
