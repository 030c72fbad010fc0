"""Replay of DivPrune: its own release on LLaVA, and EADP's repository crop by crop and frame by frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eadp.core import VisualTokens
from eadp.methods.divprune import DivPrune
from eadp.parity.eadp_llava import image_tokens
from eadp.parity.eadp_video import video_tokens
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run DivPrune on the vector's inputs and return its outputs by name."""
    kind, keep = vector.settings["kind"], vector.settings["K"]
    if kind == "crops_joint":
        return _replay_with_newlines(vector, image_tokens(vector))
    tokens = video_tokens(vector) if kind == "frames" else image_tokens(vector)
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


def _replay_with_newlines(vector: GoldenVector, tokens: VisualTokens) -> dict[str, Any]:
    """Run DivPrune on visual tokens and newline tokens together; one newline follows each row of the joined crops.

    All newlines are equal, so which of them is kept is a tie. It is resolved here as the release resolved it.
    """
    (rows, columns), (down, across) = vector.settings["grid"], vector.settings["layout"]
    total, count = len(tokens), rows * down
    tokens = replace(tokens, newlines=vector["newline"].expand(count, -1))
    assert tokens.sequence is not None
    whole, width = rows * columns, columns * across
    # Positions in the sequence: each row of the joined crops is one position longer because of its newline.
    positions = tokens.sequence + ((tokens.sequence - whole).clamp(min=0) // width)
    newline_positions = whole + torch.arange(1, count + 1) * (width + 1) - 1

    method = DivPrune(keep=vector.settings["ratio"])
    picks, selection = method.pick(tokens), method.select(tokens)
    source = torch.where(picks.indices < total, picks.indices, -1)
    newlines = _resolve_newline_ties(vector["order"], newline_positions, picks.indices - total)
    order = torch.where(source >= 0, positions[source.clamp(min=0)], newlines)
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


def _resolve_newline_ties(released_order: Tensor, newline_positions: Tensor, picked_newlines: Tensor) -> Tensor:
    """Return the newline that the release picked at each step if it picked one, otherwise ours."""
    ours = newline_positions[picked_newlines.clamp(0, len(newline_positions) - 1)]
    if len(released_order) != len(ours):
        return ours
    return torch.where(torch.isin(released_order, newline_positions), released_order, ours)
