"""The pictures' tokens that are still there between two layers, and what a method sees of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from eadp.core import Selection
from eadp.methods import NoPruning
from eadp.methods.base import Newlines
from eadp.methods.inside import Cut
from eadp.runtime.choose import stays
from eadp.runtime.decoder import Decoder
from eadp.runtime.probe import Heads
from eadp.runtime.prompted import Prompted
from eadp.runtime.sight import Placed


@dataclass
class Rest:
    """What is left of one picture. Columns are those of the first layer, the row that of the batch.

    columns: of each of the picture's slots; meaningless for those that are gone.
    there:   which slots are still there; kept: K, which of its tokens are, in the order of their rows.
    counts:  how many tokens there are from a layer on.
    moved:   the columns of the merged tokens that the last cut put behind the others.
    """

    placed: Placed
    row: int
    columns: Tensor
    there: Tensor
    kept: Tensor
    counts: dict[int, int] = field(default_factory=dict)
    moved: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    def __post_init__(self) -> None:
        self.counts[0] = len(self.kept)

    @property
    def tokens(self) -> Tensor:
        """K, the column of each token that is left."""
        return self.columns[self.placed.picture.slots[self.kept]]

    def shrink(self, rows: Tensor, merged: int, newlines: Newlines, layer: int) -> Tensor:
        """The columns that go. rows: which of the K tokens stay, the last `merged` of them behind the others; newlines:
        which of those do."""
        self.kept = self.kept[rows]
        self.moved = self.tokens[len(rows) - merged :]
        still = self.there & stays(self.placed.picture, self.kept, newlines)
        gone, self.there = self.columns[self.there & ~still], still
        self.counts[layer] = len(self.kept)
        return gone

    def per_layer(self, depth: int) -> tuple[int, ...]:
        """How many tokens each layer processes."""
        counts: list[int] = []
        for layer in range(depth):
            counts.append(self.counts.get(layer, counts[-1] if counts else 0))
        return tuple(counts)

    def selection(
        self, before: Selection, method: str, depth: int, notes: tuple[str, ...], scores: Tensor | None
    ) -> Selection:
        """What is left, added to the account of what came in. scores: of the tokens that did."""
        per_layer, rows = self.per_layer(depth), self.kept.to(before.indices.device)
        kept = rows.sort().values
        chain = method if before.method == NoPruning.name else f"{before.method}+{method}"
        cuts = [f"{now} from layer {layer} of {depth} on" for layer, now in self.counts.items() if layer]
        told = (
            f"{method}: all {self.counts[0]} tokens stay" if not cuts else f"{self.counts[0]} tokens, {', '.join(cuts)}"
        )
        if before.scores is None and scores is not None and len(scores) == before.total:
            before = replace(before, scores=scores)
        if not cuts:
            return replace(before, method=chain, per_layer=per_layer, notes=(*before.notes, told))
        blocks = torch.tensor([rows * columns for rows, columns in self.placed.picture.grids]).cumsum(0)
        quotas = torch.bincount(torch.bucketize(self.kept, blocks, right=True), minlength=len(blocks))
        return replace(
            before,
            indices=kept,
            method=chain,
            order=None,
            gains=None,
            coverage=None,
            bound=None,
            quotas=tuple(quotas.tolist()),
            merge=None if before.merge is None else before.merge[torch.isin(before.indices, kept)],
            rows=None if torch.equal(rows, kept) else rows,
            newlines=int(self.there[self.placed.picture.newline_slots].sum()),
            per_layer=per_layer,
            notes=(*before.notes, told, *notes),
        )


@dataclass(frozen=True)
class Remaining:
    """Pictures of one prompt that share a budget.

    cuts:   by layer.
    inputs: the columns of the N tokens that came into the language model; text: of the words behind them.
    last:   the column of the prompt's last token.
    """

    pictures: list[Rest]
    cuts: dict[int, Cut]
    inputs: Tensor
    text: Tensor
    last: int

    @property
    def row(self) -> int:
        return self.pictures[0].row

    @property
    def tokens(self) -> Tensor:
        """M, the column of each token that is left."""
        return torch.cat([rest.tokens for rest in self.pictures])

    def cut_at(self, layer: int) -> Cut | None:
        """The cut before this layer, where it has anything to drop or to merge."""
        cut = self.cuts.get(layer)
        there = sum(len(rest.kept) for rest in self.pictures)
        return cut if cut is not None and (cut.keep < there or cut.merged) else None

    def shrink(self, rows: Tensor, cut: Cut, newlines: Newlines) -> Tensor:
        """The columns that go. rows: which of the M tokens stay, merged ones last; newlines: which of those do."""
        gone, start, merged = [], 0, torch.arange(len(rows)) >= len(rows) - cut.merged
        for rest in self.pictures:
            end = start + len(rest.kept)
            here = (rows >= start) & (rows < end)
            gone.append(rest.shrink(rows[here] - start, int(merged[here].sum()), newlines, cut.layer))
            start = end
        return torch.cat(gone)

    def selections(
        self, before: list[Selection], method: str, depth: int, notes: tuple[str, ...], scores: Tensor | None
    ) -> list[Selection]:
        """What is left of each picture. before: what came in. scores: of all N tokens, where there are any."""
        if scores is None:
            parts: list[Tensor | None] = [None] * len(self.pictures)
        else:
            parts = list(scores.split([rest.counts[0] for rest in self.pictures]))
        return [
            rest.selection(came, method, depth, notes, part)
            for rest, came, part in zip(self.pictures, before, parts, strict=False)
        ]


class CutView:
    """A `LayerView` of one prompt's pictures at the input of a layer.

    states: P×d; prompted: what came into the first layer; where: P₀, the column that each of its columns has now.
    past:   how many of the heads' keys come before the first column.
    """

    def __init__(
        self,
        rest: Remaining,
        states: Tensor,
        prompted: Prompted,
        where: Tensor,
        heads: Heads,
        past: int,
        decoder: Decoder,
    ) -> None:
        self._rest = rest
        self._states = states
        self._prompted = prompted
        self._where = where
        self._heads = heads
        self._past = past
        self.normed = decoder.normed

    def _now(self, columns: Tensor) -> Tensor:
        return self._where[columns]

    @cached_property
    def _visual_now(self) -> Tensor:
        return self._now(self._rest.tokens)

    @property
    def visual(self) -> Tensor:
        return self._states[self._visual_now]

    @property
    def text(self) -> Tensor:
        return self._states[self._now(self._rest.text)]

    @property
    def visual_keys(self) -> Tensor:
        return self._keys(self._visual_now)

    @property
    def text_keys(self) -> Tensor:
        return self._keys(self._now(self._rest.text))

    @property
    def visual_inputs(self) -> Tensor:
        return self._prompted.embeddings[self._rest.row, self._rest.inputs]

    @property
    def text_inputs(self) -> Tensor:
        return self._prompted.embeddings[self._rest.row, self._rest.text]

    @property
    def visual_places(self) -> Tensor:
        return self._prompted.places[self._rest.row, self._rest.tokens]

    @property
    def text_places(self) -> Tensor:
        return self._prompted.places[self._rest.row, self._rest.text]

    def attention(self, words: Tensor | None = None) -> Tensor:
        asked = torch.tensor([self._rest.last]) if words is None else self._rest.text[words.cpu()]
        return self._heads.rows(self._now(asked))[0].mean(0)[:, self._past + self._visual_now]

    def _keys(self, columns: Tensor) -> Tensor:
        return self._heads.key[0, :, self._past + columns].transpose(0, 1).flatten(1)


def rows_of(selection: Selection) -> Tensor:
    """The tokens that stay, in the order of their rows."""
    return selection.indices if selection.rows is None else selection.rows


def exact(selection: Selection, cut: Cut, there: int) -> Selection:
    """The selection, if it is one that the runtime can carry out."""
    kept = selection.indices
    if selection.total != there or len(kept) != cut.keep:
        raise ValueError(
            f"{selection.method} must keep {cut.keep} of {there} tokens at layer {cut.layer}, "
            f"but kept {len(kept)} of {selection.total}"
        )
    if bool((kept.diff() <= 0).any()) or int(kept[0]) < 0 or int(kept[-1]) >= there:
        raise ValueError(f"{selection.method} must return sorted indices in 0…{there - 1} without repeats")
    if selection.rows is not None and not torch.equal(selection.rows.sort().values, kept):
        raise ValueError(f"{selection.method} must return rows that are its indices in another order")
    return selection
