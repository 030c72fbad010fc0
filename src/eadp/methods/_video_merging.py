"""Helpers of the video methods that merge tokens: an exact count, the order of rows, and the slots that they fill."""

from __future__ import annotations

import torch
from torch import Tensor

from eadp.core import Selection, VisualTokens, rank_descending
from eadp.core.merging import SparseRows
from eadp.methods._attention import complement


def correct_row_count(rows: SparseRows, scores: Tensor, count: int) -> SparseRows:
    """Drop the rows whose tokens have the lowest scores, or add the other tokens with the highest, until `count` stay.

    Args:
        rows: The rows of a clip.
        scores: N, the score of each token.
        count: The number of rows to return, at most N.
    """
    missing = count - len(rows.tokens)
    if missing < 0:
        return rows.take(rank_descending(scores[rows.tokens])[:count].sort().values)
    unkept = complement(len(scores), rows.tokens)
    return SparseRows.join([rows, SparseRows.unchanged(unkept[rank_descending(scores[unkept])[:missing]])])


def merged_selection(
    tokens: VisualTokens, rows: SparseRows, method: str, scores: Tensor, notes: tuple[str, ...] = ()
) -> Selection:
    """Build the selection that sends these rows, in this order.

    Where two rows stand for one token, the second stands for none and fills the next slot that is free.

    Args:
        tokens: The tokens of the clip.
        rows: The rows, at most as many as tokens.
        method: The method's label.
        scores: N, the score of each token.
        notes: Notes for the selection.
    """
    total, stands_for = len(tokens), rows.tokens.tolist()
    taken, own = set(stands_for), []
    seen: set[int] = set()
    for token in stands_for:
        own.append(-1 if token in seen else token)
        if token in seen:
            free = [*range(token + 1, total), *range(token - 1, -1, -1)]
            taken.add(next(slot for slot in free if slot not in taken))
        seen.add(token)
    indices = torch.tensor(sorted(taken), device=scores.device)
    in_order = own == indices.tolist()
    return Selection(
        indices,
        total,
        method,
        quotas=tokens.quotas(indices),
        scores=scores,
        merge=rows.dense(total),
        rows=None if in_order else torch.tensor(own, device=scores.device),
        notes=notes,
    )
