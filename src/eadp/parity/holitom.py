"""Replay of HoliTom before the language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eadp.core import neighbour_cosine
from eadp.methods.holitom import HoliTom
from eadp.parity.clips import build_clip, row_tokens, sent_rows
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run HoliTom on the vector's inputs and return its outputs by name."""
    given = vector.settings
    method = HoliTom(
        keep=given["retain_ratio"], threshold=given["tau"], beta=given["beta"], longest=given["max_window"]
    )
    tokens = build_clip(vector["video_embeds"], tuple(given["grid"]), vector["attention"])
    similarity = neighbour_cosine(tokens.frames)
    selection = method.select(tokens)
    sent = selection
    if given["newline"] == "grid":
        sent = method.with_settings(order="position").select(tokens)
    rows = sent_rows(tokens, sent)
    return {
        "similarity": similarity,
        "windows": [[each.start, each.stop - 1] for each in method.divide(similarity > method.threshold).frames],
        "emitted": row_tokens(selection),
        "kept": selection.indices,
        "rows": _with_newlines(rows, sent.indices, given["grid"][1], vector) if "newline" in vector else rows,
    }


def _with_newlines(rows: Tensor, tokens: Tensor, columns: int, vector: GoldenVector) -> Tensor:
    """Return the rows with a newline after each row of the grid that keeps a token. tokens: K, sorted."""
    line, newline = (tokens // columns).tolist(), vector["newline"].to(rows)
    sequence = []
    for index, row in enumerate(rows):
        sequence.append(row)
        if index + 1 == len(line) or line[index + 1] != line[index]:
            sequence.append(newline)
    return torch.stack(sequence)
