"""SparseVLM: the words that the image speaks of rate its tokens; some of the losers come back, merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from eadp.core import Selection, checks, density_peaks, rank_descending
from eadp.methods.base import Need, Positions
from eadp.methods.inside import Budget, Cut, InsideMethod, LayerView, layer_mean, scaled, unseen

PUBLISHED_TOTAL = 576
PUBLISHED: dict[int, tuple[int, int, int]] = {
    192: (300, 200, 110),
    128: (303, 110, 36),
    96: (238, 48, 26),
    64: (66, 30, 17),
}
"""Tokens kept at each of the three cuts, without the recycled ones, by the release's name for the table and of 576."""

_KNOTS = np.array([(0, 0, 0), *sorted(PUBLISHED.values(), key=lambda kept: kept[2]), (PUBLISHED_TOTAL,) * 3], float)


@dataclass(frozen=True)
class Recycling:
    """What comes back of the dropped tokens.

    candidates: c, the best of them, best score first. centres: C of them, in the order of their clusters.
    cluster:    c, the cluster of each candidate.
    """

    candidates: Tensor
    centres: Tensor
    cluster: Tensor


@dataclass(frozen=True)
class SparseVLM(InsideMethod):
    """Words whose input embeddings fit the image better than the mean word rate its tokens by their attention. At each
    cut the best of the dropped tokens are clustered, and each cluster comes back as one token, its mean.

    Paper: "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference" (ICML 2025). The
    default is version 1.0 of its release: cuts at the output of layers 2, 6 and 15 by those layers' own attention, so
    that 3, 7 and 16 are the first with fewer tokens; fixed tables of counts, where the paper computes ranks; of p
    dropped tokens the ⌊0.3·p⌋ + 1 best come back as ⌊candidates/10⌋ + 1 clusters. Recycled tokens stand behind all kept
    ones of the image and count as visual tokens at the next cut; all tokens are renumbered (`positions="keep"` leaves
    a recycled token the position of its best member).
    The release names its tables by the mean over layers if a cut's own layer counts as already reduced. `keep` does
    too: budget="published". Counting each layer as it is, budget="layer_mean", 192 is 206.5, 128 is 145.4, 96 is
    114.1 and 64 is 82.3. Between the tables, counts are interpolated by what is left in the end (nothing at 0, all at
    576), and for other totals than 576 they scale. `table` gives three counts of your own, for whatever total.
    Layers scale with the model's depth. Ties in density go to the first, where the release adds a little noise.
    """

    name: ClassVar[str] = "sparsevlm"
    citation: ClassVar[str] = "SparseVLM: Visual Token Sparsification (ICML 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"language_attention"})
    merges: ClassVar[bool] = True
    positions: ClassVar[Positions] = "renumber"
    budgets: ClassVar[tuple[Budget, ...]] = ("after_prune", "layer_mean", "published")
    presets: ClassVar[tuple[str, ...]] = ("keep=192, 128, 96, 64 of 576: the release's tables",)

    layers: tuple[int, ...] = (3, 7, 16)
    budget: Budget = field(default="published", kw_only=True)
    table: tuple[int, int, int] | None = None
    """Tokens kept at each cut, without the recycled ones, in place of `keep`."""
    recycle: float = 0.3
    """Share of the dropped tokens that are clustered; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.unit_interval("recycle", self.recycle)
        if len(self.layers) != 3:
            raise ValueError(f"the published tables are for three cuts, got layers={self.layers}")
        if self.table is not None and self.keep is not None:
            raise ValueError(f"give either keep or a table of counts, got keep={self.keep} and table={self.table}")
        if self.table is not None and (len(self.table) != 3 or min(self.table) < 1):
            raise ValueError(f"table must be three counts of at least 1, such as (300, 200, 110), got {self.table}")

    def default_cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        return super().default_cuts(total, depth) if self.table is None else self.by_table(self.table, total, depth)

    def cuts_for_mean(self, mean: float, total: int, depth: int) -> tuple[Cut, ...]:
        for published, kept in PUBLISHED.items() if self.budget == "published" else ():
            if mean * PUBLISHED_TOTAL == published * total:
                return self.by_table([round(count * total / PUBLISHED_TOTAL) for count in kept], total, depth)
        return super().cuts_for_mean(mean, total, depth)

    def mean_of(self, cuts: Sequence[Cut], total: int, depth: int) -> float:
        if self.budget == "published":
            cuts = [Cut(cut.layer - 1, cut.keep) for cut in cuts]
        return layer_mean(cuts, total, depth)

    def by_table(self, kept: Sequence[int], total: int, depth: int) -> tuple[Cut, ...]:
        """The cuts that keep so many tokens, at most all but one, and recycle some of the others."""
        cuts = []
        for layer, count in dict(zip(scaled(self.layers, depth), kept, strict=True)).items():
            count = max(1, min(count, total - 1))
            merged = self.clusters(total - count)
            total = count + merged
            cuts.append(Cut(layer, total, merged))
        return tuple(cuts)

    def cuts_to(self, after: float, total: int, depth: int) -> tuple[Cut, ...]:
        end = int(after)
        table = [np.interp(end * PUBLISHED_TOTAL / total, _KNOTS[:, 2], column) for column in _KNOTS.T]
        kept = [max(end, round(count * total / PUBLISHED_TOTAL)) for count in table]
        *cuts, last = self.by_table(kept, total, depth)
        merged = self.clusters_among(end, cuts[-1].keep if cuts else total)
        return *cuts, Cut(last.layer, end, merged)

    def candidates(self, dropped: int) -> int:
        """How many of so many dropped tokens are clustered."""
        return min(int(self.recycle * dropped) + 1, dropped) if self.recycle else 0

    def clusters(self, dropped: int) -> int:
        """How many tokens come back for so many that were dropped."""
        candidates = self.candidates(dropped)
        return min(candidates // 10 + 1, candidates)

    def clusters_among(self, left: int, total: int) -> int:
        """How many tokens come back where `left` of `total` are left with them: no more than stay as they are."""
        return next(merged for merged in range(left // 2, -1, -1) if self.clusters(total - left + merged) >= merged)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        scores = view.attention(raters(rater_fit(view.visual_inputs, view.text_inputs))).mean(0)
        kept = rank_descending(scores)[: cut.keep - cut.merged].sort().values
        weights = torch.zeros(cut.keep, len(scores), device=scores.device)
        weights[torch.arange(len(kept)), kept] = 1
        if not cut.merged:
            return Selection(kept, len(scores), self.name, scores=scores, notes=unseen(scores))
        back = self.recycling(cut, scores, view.visual)
        best = []
        for index in range(cut.merged):
            members = back.candidates[back.cluster == index]
            best.append(members[:1])
            weights[len(kept) + index, members] = 1 / (len(members) + 1e-6)
        rows = torch.cat([kept, *best])
        note = f"{cut.merged} of the {cut.keep} tokens from layer {cut.layer} on are means of dropped ones"
        return Selection(
            rows.sort().values,
            len(scores),
            self.name,
            scores=scores,
            merge=weights,
            rows=rows,
            notes=(*unseen(scores), note),
        )

    def recycling(self, cut: Cut, scores: Tensor, states: Tensor) -> Recycling:
        """The clusters of the best dropped tokens. scores: M; states: M×d."""
        kept = cut.keep - cut.merged
        candidates = rank_descending(scores)[kept : kept + self.candidates(len(scores) - kept)]
        found = density_peaks(states[candidates], cut.merged)
        return Recycling(candidates, candidates[found.centres], found.labels)


def rater_fit(visual: Tensor, text: Tensor) -> Tensor:
    """X, how well each word fits the image: softmax over words of v·t, averaged over visual tokens.

    visual: N×d, text: X×d, both as they come into the language model.
    """
    return (visual.float() @ text.float().T).softmax(dim=1).mean(0)


def raters(fit: Tensor) -> Tensor:
    """The words that fit better than the mean word; all where none does."""
    above = (fit > fit.mean()).nonzero().flatten()
    return above if len(above) else torch.arange(len(fit), device=fit.device)
