"""Selections as methods return them: whether they can be carried out, and the part of each image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from eadp.core import Relevance, Selection, VisualTokens
from eadp.core.deferred import Deferred
from eadp.models.vision_call import EncodedImage


def check_selection(selection: Selection, tokens: VisualTokens) -> Selection:
    """Return the selection if the runtime can carry it out. The values of tensors on a device are checked when read.

    Raises:
        ValueError: If its indices, weights or rows do not fit the tokens.
    """
    indices, total = selection.indices, len(tokens)
    if selection.total != total:
        raise ValueError(f"{selection.method} selected from {selection.total} tokens, but was given {total}")
    if indices.ndim != 1 or not len(indices):
        raise ValueError(_unsorted(selection))
    _check_merge(selection, tokens)
    if indices.device.type != "cpu":
        return selection.changed(problem=Deferred(lambda: selection.problem or _find_problem(selection)))
    if (problem := _find_problem(selection)) is not None:
        raise ValueError(problem)
    return selection


def _check_merge(selection: Selection, tokens: VisualTokens) -> None:
    if selection.merge is None:
        if selection.rows is not None:
            raise ValueError(_unmatched_rows(selection))
        return
    kept, total, merge = len(selection.indices), len(tokens), selection.merge
    more_sources = tokens.tower_cls if selection.merge_space == "tower" else tokens.downsampled
    sources = total if more_sources is None else total + len(more_sources)
    if merge.shape not in ((kept, total), (kept, sources)):
        raise ValueError(f"{selection.method} must merge with {kept}×{total} weights, got {tuple(merge.shape)}")
    if selection.merge_space == "tower" and tokens.tower is None:
        raise ValueError(f"{selection.method} merges before the projector, but was given no rows of the tower")
    if selection.rows is not None and len(selection.rows) != kept:
        raise ValueError(_unmatched_rows(selection))


def _find_problem(selection: Selection) -> str | None:
    """Return what is wrong with the values of a selection's indices and rows, if anything is."""
    indices, rows = selection.indices.cpu(), selection.rows
    if bool((indices.diff() <= 0).any()):
        return _unsorted(selection)
    if int(indices[0]) < 0 or int(indices[-1]) >= selection.total:
        return f"{selection.method} returned indices outside 0…{selection.total - 1}"
    if rows is not None:
        own = rows.cpu()[rows.cpu() >= 0]
        if len(own.unique()) != len(own) or not bool(torch.isin(own, indices).all()):
            return _unmatched_rows(selection)
    return None


def _unsorted(selection: Selection) -> str:
    return f"{selection.method} must return at least one index, sorted and without repeats"


def _unmatched_rows(selection: Selection) -> str:
    return (
        f"{selection.method} must say for each of its {len(selection.indices)} merged rows which of the kept tokens it "
        "stands for, no token twice, or −1"
    )


def split_selection(selection: Selection, images: Sequence[EncodedImage]) -> list[Selection]:
    """Split the selection from several images under one budget into one selection per image."""
    if len(images) == 1:
        return [selection]
    ends = list(accumulate(len(image) for image in images))
    blocks = list(accumulate((len(image.layout.grids) for image in images), initial=0))
    note = f"one budget over {len(images)} images; coverage and bound are theirs together"
    return [
        _part(selection, start, end, slice(first, last), note)
        for start, end, first, last in zip([0, *ends], ends, blocks, blocks[1:], strict=False)
    ]


def _part(selection: Selection, start: int, end: int, blocks: slice, note: str) -> Selection:
    """The selection among the tokens from `start` to `end`, which are in these blocks. How many is not known yet."""

    def inside(indices: Tensor) -> Tensor:
        return (indices >= start) & (indices < end)

    def local(indices: Tensor | None) -> Tensor | None:
        return None if indices is None else indices[inside(indices)] - start

    def gains() -> Tensor | None:
        order, all_gains = selection.order, selection.gains
        return None if order is None or all_gains is None else all_gains[inside(order)]

    def merge() -> Tensor | None:
        # The merged rows are assigned to the images in turn, to each as many as it keeps slots.
        if selection.merge is None:
            return None
        weights = selection.merge[inside(selection.indices)]
        more_sources = weights[:, selection.total :]
        more_sources = more_sources[:, blocks] if selection.merge_space == "tower" else more_sources
        return torch.cat([weights[:, start:end], more_sources], dim=1)

    def rows() -> Tensor | None:
        if selection.rows is None:
            return None
        here = selection.rows[inside(selection.indices)]
        return torch.where(inside(here), here - start, -1)

    def relevance() -> Relevance | None:
        return None if selection.relevance is None else _relevance_part(selection.relevance, start, end)

    return selection.changed(
        indices=Deferred(lambda: local(selection.indices)),
        total=end - start,
        order=Deferred(lambda: local(selection.order)),
        gains=Deferred(gains),
        coverage=Deferred(lambda: selection.coverage),
        bound=Deferred(lambda: selection.bound),
        quotas=Deferred(lambda: selection.quotas[blocks]),
        scores=Deferred(lambda: None if selection.scores is None else selection.scores[start:end]),
        merge=Deferred(merge),
        rows=Deferred(rows),
        relevance=Deferred(relevance),
        notes=Deferred(lambda: (*selection.notes, note)),
        problem=Deferred(lambda: selection.problem),
    )


def _relevance_part(relevance: Relevance, start: int, end: int) -> Relevance:
    """The relevance of the tokens from `start` to `end`."""
    per_token = ("dense_score", "global_score", "fused", "score", "smoothed", "polarized")
    parts: dict[str, Any] = {name: getattr(relevance, name) for name in per_token}
    parts = {name: None if part is None else part[start:end] for name, part in parts.items()}
    return replace(
        relevance,
        similarity=relevance.similarity[:, start:end],
        weights=relevance.weights[:, start:end],
        **parts,
    )
