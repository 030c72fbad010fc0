"""FastV on its vectors: the last token's attention is given."""

from __future__ import annotations

from typing import Any

import torch

from eadp.methods.fastv import FastV
from eadp.methods.inside import DEPTH, Cut
from eadp.parity.sequence import Shown, image_of, left
from eadp.parity.vectors import Vector


def replay(vector: Vector) -> dict[str, Any]:
    settings = vector.settings
    method = FastV(keep=settings["K"], layers=(settings["agg_layer"],))
    cut = next(iter(method.cuts(settings["N"], DEPTH)), Cut(settings["agg_layer"], settings["N"]))
    image, hidden = image_of(vector), vector["hidden"]
    view = Shown(visual=hidden[image], weights=vector["attention"].mean(0, keepdim=True)[:, image])
    chosen = method.choose(cut, view)
    plan = left(vector, chosen.indices)
    return {
        "scores": chosen.scores,
        "kept": chosen.indices,
        "position_ids": plan.take_columns(torch.arange(len(hidden))[None])[0],
        "rows": plan.take_rows(hidden[None])[0],
    }
