"""SparseVLM: words that fit the image rate its tokens; some of the dropped tokens return, merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from eadp.core import Selection, density_peaks, rank_descending
from eadp.methods.base import Need, Positions, register_method
from eadp.methods.inside import (
    Budget,
    Cut,
    InsideMethod,
    LayerView,
    mean_tokens_per_layer,
    note_missing_attention,
    scale_layers,
)
from eadp.methods.settings import Range

TokenCount = Annotated[int, Range(1)]

PUBLISHED_TOTAL = 576
PUBLISHED: dict[int, tuple[int, int, int]] = {
    192: (300, 200, 110),
    128: (303, 110, 36),
    96: (238, 48, 26),
    64: (66, 30, 17),
}
"""Tokens of 576 kept at each of the three cuts, without the recycled ones, by the release's name for the table."""

_KNOTS = np.array([(0, 0, 0), *sorted(PUBLISHED.values(), key=lambda kept: kept[2]), (PUBLISHED_TOTAL,) * 3], float)


@dataclass(frozen=True)
class Recycling:
    """The dropped tokens that return as cluster means.

    Attributes:
        candidates: c, the best dropped tokens, best score first.
        centres: C of the candidates, one per cluster.
        cluster: c, the cluster of each candidate.
    """

    candidates: Tensor
    centres: Tensor
    cluster: Tensor


@register_method
@dataclass(frozen=True)
class SparseVLM(InsideMethod):
    """At three cuts, keep the tokens to which the words that fit the image attend most, and recycle some of the others.

    Raters are the words whose input embeddings fit the image better than the average word does; tokens are scored by
    the raters' attention. The best dropped tokens are clustered, and each cluster returns as one token, its mean.

    Paper: "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference", ICML 2025.

    Release (version 1.0), the default: Cuts are at the output of layers 2, 6 and 15 by the attention of these layers,
    so that layers 3, 7 and 16 are the first with fewer tokens. Counts come from fixed tables, where the paper computes
    ranks. Of p dropped tokens, the ⌊0.3·p⌋ + 1 best return as ⌊candidates/10⌋ + 1 clusters. Recycled tokens follow all
    kept tokens of the image and count as visual tokens at the next cut. All tokens are renumbered;
    `attach(positions="keep")` gives a recycled token the position of its best member. The release names its tables by
    the mean over layers, with a cut's own layer counted as if it were already reduced. `keep` counts in this way too
    (`budget="published"`).

    Departures: With `budget="layer_mean"` each layer counts as it is, and the tables 192, 128, 96 and 64 come to 206.5,
    145.4, 114.1 and 82.3. Between the tables, counts are interpolated by the number of tokens left in the end (from
    none at 0 to all at 576); for totals other than 576 they are scaled. Layers scale with the depth of the model. Ties
    in density go to the first token, where the release adds a little noise.

    Attributes:
        layers: See `InsideMethod`; exactly three.
        budget: See `InsideMethod`, or "published", the release's way of counting.
        table: Tokens kept at each of the three cuts, without the recycled ones, instead of `keep`.
        recycle: The share of the dropped tokens that are clustered; 0 for none.
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
    table: tuple[TokenCount, TokenCount, TokenCount] | None = None
    recycle: Annotated[float, Range(0, 1)] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.layers) != 3:
            raise ValueError(f"the published tables are for three cuts, got layers={self.layers}")
        if self.table is not None and self.keep is not None:
            raise ValueError(f"give either keep or a table of counts, got keep={self.keep} and table={self.table}")

    def default_cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        if self.table is None:
            return super().default_cuts(total, depth)
        return self.cuts_by_table(self.table, total, depth)

    def cuts_with_mean(self, mean: float, total: int, depth: int) -> tuple[Cut, ...]:
        for published, kept in PUBLISHED.items() if self.budget == "published" else ():
            if mean * PUBLISHED_TOTAL == published * total:
                return self.cuts_by_table([round(count * total / PUBLISHED_TOTAL) for count in kept], total, depth)
        return super().cuts_with_mean(mean, total, depth)

    def compute_mean(self, cuts: Sequence[Cut], total: int, depth: int) -> float:
        if self.budget == "published":
            cuts = [Cut(cut.layer - 1, cut.keep) for cut in cuts]
        return mean_tokens_per_layer(cuts, total, depth)

    def cuts_by_table(self, kept: Sequence[int], total: int, depth: int) -> tuple[Cut, ...]:
        """Return the cuts that keep these counts, at most all tokens but one, and recycle some of the others."""
        cuts = []
        for layer, count in dict(zip(scale_layers(self.layers, depth), kept, strict=True)).items():
            count = max(1, min(count, total - 1))
            merged = self.count_clusters(total - count)
            total = count + merged
            cuts.append(Cut(layer, total, merged))
        return tuple(cuts)

    def cuts_leaving(self, after: float, total: int, depth: int) -> tuple[Cut, ...]:
        end = int(after)
        table = [np.interp(end * PUBLISHED_TOTAL / total, _KNOTS[:, 2], column) for column in _KNOTS.T]
        kept = [max(end, round(count * total / PUBLISHED_TOTAL)) for count in table]
        *cuts, last = self.cuts_by_table(kept, total, depth)
        merged = self.count_clusters_within(end, cuts[-1].keep if cuts else total)
        return *cuts, Cut(last.layer, end, merged)

    def count_candidates(self, dropped: int) -> int:
        """Return how many of `dropped` tokens are clustered."""
        return min(int(self.recycle * dropped) + 1, dropped) if self.recycle else 0

    def count_clusters(self, dropped: int) -> int:
        """Return how many tokens come back for `dropped` tokens."""
        candidates = self.count_candidates(dropped)
        return min(candidates // 10 + 1, candidates)

    def count_clusters_within(self, end: int, total: int) -> int:
        """Return how many of the `end` tokens that stay of `total` are recycled: at most half of them."""
        return next(merged for merged in range(end // 2, -1, -1) if self.count_clusters(total - end + merged) >= merged)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        scores = view.attention(select_raters(rater_fit(view.visual_inputs, view.text_inputs))).mean(0)
        kept = rank_descending(scores)[: cut.keep - cut.merged].sort().values
        weights = torch.zeros(cut.keep, len(scores), device=scores.device)
        weights[torch.arange(len(kept)), kept] = 1
        if not cut.merged:
            return Selection(kept, len(scores), self.name, scores=scores, notes=note_missing_attention(scores))
        recycling = self.cluster_dropped(cut, scores, view.visual)
        best = []
        for index in range(cut.merged):
            members = recycling.candidates[recycling.cluster == index]
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
            notes=(*note_missing_attention(scores), note),
        )

    def cluster_dropped(self, cut: Cut, scores: Tensor, states: Tensor) -> Recycling:
        """Cluster the best dropped tokens by their hidden states. scores: M; states: M×d."""
        kept = cut.keep - cut.merged
        candidates = rank_descending(scores)[kept : kept + self.count_candidates(len(scores) - kept)]
        found = density_peaks(states[candidates], cut.merged)
        return Recycling(candidates, candidates[found.centres], found.labels)


def rater_fit(visual: Tensor, text: Tensor) -> Tensor:
    """Return X, how well each word fits the image: softmax over words of v·t, averaged over visual tokens.

    Args:
        visual: N×d, the visual tokens as they enter the language model.
        text: X×d, the words as they enter the language model.
    """
    return (visual.float() @ text.float().T).softmax(dim=1).mean(0)


def select_raters(fit: Tensor) -> Tensor:
    """Return the indices of the words that fit better than the mean; all words if none does. fit: X."""
    above = (fit > fit.mean()).nonzero().flatten()
    return above if len(above) else torch.arange(len(fit), device=fit.device)
