"""Which columns of the prompt stay: each picture's tokens go to the method, its answer comes back as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from eadp.core import Relevance, Selection, TextGuide, VisualTokens, trace
from eadp.methods import BeforeMethod
from eadp.methods.base import Newlines
from eadp.models.family import Picture
from eadp.runtime.merge import Merge
from eadp.runtime.sight import Placed, View
from eadp.runtime.vision import Extra, beside, joined_attention

if TYPE_CHECKING:
    from eadp.models.guides.base import Guide

BudgetOver = Literal["image", "prompt"]


@dataclass(frozen=True)
class Choice:
    """keep: B×L, false for the columns that go."""

    keep: Tensor
    merges: list[Merge]
    selections: list[Selection]

    @property
    def changes_nothing(self) -> bool:
        return not self.merges and bool(self.keep.all())

    def repeated(self, times: int) -> Choice:
        """The same for every beam."""
        if times == 1:
            return self
        merges = [replace(merge, row=merge.row * times + beam) for merge in self.merges for beam in range(times)]
        return replace(self, keep=self.keep.repeat_interleave(times, dim=0), merges=merges)


class Chooser:
    """Runs a method over the pictures of a batch."""

    def __init__(
        self, method: BeforeMethod, guide: Guide | None, budget_over: BudgetOver, newlines: Newlines | None = None
    ) -> None:
        """newlines: which stay; None: those that the method's release keeps."""
        self.method = method
        self.guide = guide
        self.budget_over = budget_over
        self.newlines: Newlines = newlines or method.newlines

    def choose(self, view: View, embeddings: Tensor) -> Choice:
        """embeddings: B×L×d, as the language model would receive them, before beams."""
        keep = torch.ones(embeddings.shape[:2], dtype=torch.bool)
        merges, selections = [], []
        texts: dict[int, TextGuide] = {}
        for group in self.groups(view.placed):
            row = group[0].row
            if self.guide is not None and row not in texts:
                with trace.part("text guide"):
                    texts[row] = _on(self.encoded(self.guide, view.question(row)), embeddings.device)
            pictures = [each.picture for each in group]
            columns = torch.cat([each.tokens for each in group])
            features = embeddings[row, columns.to(embeddings.device)]
            breaks = torch.cat([each.columns[each.picture.newline_slots] for each in group])
            selection, extra = self.select(
                pictures, features, texts.get(row), embeddings[row, breaks.to(features.device)]
            )
            kept = selection.indices.cpu()
            if selection.merge is not None:
                tower = extra.tower if selection.merge_space == "tower" else None
                rows = None if selection.rows is None else selection.rows.cpu()
                merges.append(
                    Merge(row, columns, columns[kept], selection.merge, extra.rows, extra.deepstack, rows, tower)
                )
            for each, part in zip(group, split(selection, pictures), strict=True):
                whole = len(part) == part.total and part.merge is None
                stay = stays(each.picture, part.indices.cpu(), "all" if whole else self.newlines, part.newlines)
                keep[row, each.columns] = stay
                selections.append(replace(part, newlines=int(stay[each.picture.newline_slots].sum())))
        return Choice(keep, merges, selections)

    def encoded(self, guide: Guide, question: str) -> TextGuide:
        """The question as the method's release would give it to the guide's encoder."""
        return guide.encode(question, self.method.text_layout)

    def groups(self, placed: list[Placed]) -> list[list[Placed]]:
        """The pictures that share a budget."""
        if self.budget_over == "image":
            return [[each] for each in placed]
        rows: dict[int, list[Placed]] = {}
        for each in placed:
            rows.setdefault(each.row, []).append(each)
        return list(rows.values())

    def select(
        self, pictures: list[Picture], features: Tensor, text: TextGuide | None, newline_rows: Tensor | None = None
    ) -> tuple[Selection, Extra]:
        """features: N×d; newline_rows: R×d, the pictures' newlines, for methods that choose among them too."""
        method, total = self.method, len(features)
        if self._keeps_all(total):
            if not method.may_keep_fewer:
                note = f"all {total} tokens stay: no more than keep={method.keep}"
                return Selection(torch.arange(total), total, method.name, notes=(note,)), Extra()
            method = replace(method, keep=total)
        with trace.part("vision tower"):
            extra = beside(pictures, method)
        tokens = VisualTokens(
            features,
            None if self.guide is None else self._aligned(pictures, features, self.guide),
            [grid for picture in pictures for grid in picture.grids],
            pictures[0].layout if len(pictures) == 1 else None,
            joined_attention(pictures),
            tower=None if extra.tower is None else extra.tower.rows.detach().to(features.device),
            tower_cls=_class_rows(extra, features.device),
            sequence=_sequence(pictures, features.device),
            newlines=newline_rows if self.newlines == "chosen" else None,
            downsampled=extra.rows,
            downsampled_grids=extra.grids,
        )
        with trace.part("selection"):
            return checked(method.select(tokens, text), tokens), extra

    def _keeps_all(self, total: int) -> bool:
        keep = self.method.keep
        if keep is None or isinstance(keep, int):
            return keep is not None and keep >= total
        return self.method.count_to_keep(total) == total

    @trace.part("text guide")
    def _aligned(self, pictures: list[Picture], features: Tensor, guide: Guide) -> Tensor:
        if guide.space == "language":
            return guide.align(features).to(features.device)
        aligned = []
        for picture in pictures:
            if picture.states is None or picture.arrange is None:
                raise ValueError(
                    f"{type(guide).__name__} aligns hidden states of the vision tower, and this model has none that "
                    "lie in a space shared with text; give a guide with space='language', such as EmbeddingGuide"
                )
            aligned.append(picture.arrange(guide.align(picture.states)))
        return torch.cat(aligned).to(features.device)


def _class_rows(extra: Extra, device: torch.device) -> Tensor | None:
    if extra.tower is None or extra.tower.cls is None:
        return None
    return extra.tower.cls.detach().to(device)


def _sequence(pictures: Sequence[Picture], device: torch.device) -> Tensor | None:
    """N, the rank of each token of an image in the sequence; several images follow each other."""
    return pictures[0].slots.argsort().argsort().to(device) if len(pictures) == 1 else None


def stays(picture: Picture, kept: Tensor, newlines: Newlines, chosen: int = 0) -> Tensor:
    """length: the slots of the kept tokens, and of newlines. chosen: how many newlines the method chose."""
    stay = torch.ones(picture.length, dtype=torch.bool)
    stay[picture.slots] = False
    stay[picture.slots[kept]] = True
    breaks = picture.newline_slots
    if newlines == "none":
        stay[breaks] = False
    elif newlines == "kept rows":
        stay[breaks] = torch.isin(breaks, picture.newlines[kept])
    elif newlines == "chosen":
        # They are all the same row, so that the first stand for any.
        stay[breaks[chosen:]] = False
    return stay


def _on(text: TextGuide, device: torch.device) -> TextGuide:
    """The guide where the features are: its encoder may sit elsewhere."""

    def moved(part: Tensor | Sequence[Tensor] | None) -> Tensor | list[Tensor] | None:
        if part is None or isinstance(part, Tensor):
            return None if part is None else part.to(device)
        return [each.to(device) for each in part]

    return replace(text, tokens=moved(text.tokens), pooled=moved(text.pooled))


def checked(selection: Selection, tokens: VisualTokens) -> Selection:
    """The selection, if it is one that the runtime can carry out."""
    indices, merge, total = selection.indices, selection.merge, len(tokens)
    beside = tokens.tower_cls if selection.merge_space == "tower" else tokens.downsampled
    sources = total if beside is None else total + len(beside)
    if selection.total != total:
        raise ValueError(f"{selection.method} selected from {selection.total} tokens, but was given {total}")
    if indices.ndim != 1 or not len(indices) or bool((indices.diff() <= 0).any()):
        raise ValueError(f"{selection.method} must return at least one index, sorted and without repeats")
    if int(indices[0]) < 0 or int(indices[-1]) >= total:
        raise ValueError(f"{selection.method} returned indices outside 0…{total - 1}")
    if merge is not None and merge.shape not in ((len(indices), total), (len(indices), sources)):
        raise ValueError(f"{selection.method} must merge with {len(indices)}×{total} weights, got {tuple(merge.shape)}")
    if merge is not None and selection.merge_space == "tower" and tokens.tower is None:
        raise ValueError(f"{selection.method} merges before the projector, but was given no rows of the tower")
    if selection.rows is not None:
        own = selection.rows[selection.rows >= 0]
        stand_for_kept = len(own.unique()) == len(own) and bool(torch.isin(own, indices).all())
        if merge is None or len(selection.rows) != len(indices) or not stand_for_kept:
            raise ValueError(
                f"{selection.method} must say for each of its {len(indices)} merged rows which of the kept tokens it "
                "stands for, no token twice, or −1"
            )
    return selection


def split(selection: Selection, pictures: Sequence[Picture]) -> list[Selection]:
    """One budget over several pictures, told picture by picture."""
    if len(pictures) == 1:
        return [selection]
    ends = list(accumulate(len(picture) for picture in pictures))
    blocks = list(accumulate((len(picture.grids) for picture in pictures), initial=0))
    note = f"one budget over {len(pictures)} images; coverage and bound are theirs together"
    return [
        _part(selection, start, end, slice(first, last), note)
        for start, end, first, last in zip([0, *ends], ends, blocks, blocks[1:], strict=False)
    ]


def _part(selection: Selection, start: int, end: int, blocks: slice, note: str) -> Selection:
    """The tokens from start to end, which are in these blocks."""

    def inside(indices: Tensor) -> Tensor:
        return (indices >= start) & (indices < end)

    order, merge, rows = selection.order, selection.merge, selection.rows
    # As many rows as slots are each picture's, in turn.
    here = inside(selection.indices)
    if merge is not None:
        beside = merge[here, selection.total :]
        beside = beside[:, blocks] if selection.merge_space == "tower" else beside
        merge = torch.cat([merge[here, start:end], beside], dim=1)
    return replace(
        selection,
        indices=selection.indices[here] - start,
        total=end - start,
        order=None if order is None else order[inside(order)] - start,
        gains=None if order is None or selection.gains is None else selection.gains[inside(order)],
        quotas=selection.quotas[blocks],
        scores=None if selection.scores is None else selection.scores[start:end],
        merge=merge,
        rows=None if rows is None else torch.where(inside(rows[here]), rows[here] - start, -1),
        relevance=None if selection.relevance is None else _cells(selection.relevance, start, end),
        notes=(*selection.notes, note),
    )


def _cells(relevance: Relevance, start: int, end: int) -> Relevance:
    """The same words over some of the tokens."""
    per_token = ("dense_score", "global_score", "fused", "score", "smoothed", "polarized")
    cut: dict[str, Any] = {name: getattr(relevance, name) for name in per_token}
    cut = {name: None if part is None else part[start:end] for name, part in cut.items()}
    return replace(
        relevance,
        similarity=relevance.similarity[:, start:end],
        weights=relevance.weights[:, start:end],
        **cut,
    )
