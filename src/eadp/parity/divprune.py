"""DivPrune: its own release on LLaVA, EADP's repository crop by crop and frame by frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eadp.core import VisualTokens
from eadp.methods.divprune import DivPrune
from eadp.parity.eadp_llava import visual_tokens
from eadp.parity.eadp_video import frames
from eadp.parity.vectors import Vector


def replay(vector: Vector) -> dict[str, Any]:
    kind, keep = vector.settings["kind"], vector.settings["K"]
    if kind == "crops_joint":
        return _with_newlines(vector, visual_tokens(vector))
    tokens = frames(vector) if kind == "frames" else visual_tokens(vector)
    method = DivPrune(keep=keep * len(tokens.grids), scope="block")
    if kind == "single":
        method = DivPrune(keep=vector.settings["ratio"])
    selection = method.select(tokens)
    in_order = tokens.in_sequence(selection.indices)
    return {
        "order": selection.order,
        "order_source": selection.order,
        "newlines_kept": 0,
        "gains": selection.gains,
        "kept": selection.indices,
        "quotas": torch.tensor(selection.quotas),
        "rows_index": in_order,
        "rows": tokens.features[in_order],
    }


def _with_newlines(vector: Vector, tokens: VisualTokens) -> dict[str, Any]:
    """One pool with a newline behind each row of the joined crops. These are equal, so which of them stays is a tie,
    which is settled here as the release settled it."""
    (rows, columns), (down, across) = vector.settings["grid"], vector.settings["layout"]
    total, count = len(tokens), rows * down
    tokens = replace(tokens, newlines=vector["newline"].expand(count, -1))
    assert tokens.sequence is not None
    whole, width = rows * columns, columns * across
    # Behind each row of the joined crops one more place is taken.
    places = tokens.sequence + ((tokens.sequence - whole).clamp(min=0) // width)
    breaks = whole + torch.arange(1, count + 1) * (width + 1) - 1

    method = DivPrune(keep=vector.settings["ratio"])
    picks, selection = method.pick(tokens), method.select(tokens)
    source = torch.where(picks.indices < total, picks.indices, -1)
    theirs = vector["order"]
    order = torch.where(source >= 0, places[source.clamp(min=0)], _settled(theirs, breaks, picks.indices - total))
    in_order = source[order.argsort()]
    features = torch.cat([tokens.features, vector["newline"][None]])
    return {
        "order": order,
        "order_source": source,
        "gains": picks.gains,
        "kept": selection.indices,
        "quotas": torch.tensor(selection.quotas),
        "newlines_kept": selection.newlines,
        "rows_index": in_order,
        "rows": features[in_order],
    }


def _settled(theirs: Tensor, breaks: Tensor, ours: Tensor) -> Tensor:
    """The release's newline where it picked one at this turn too, else ours."""
    own = breaks[ours.clamp(0, len(breaks) - 1)]
    return torch.where(torch.isin(theirs, breaks), theirs, own) if len(theirs) == len(own) else own
