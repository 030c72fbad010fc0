"""SparseVLM: the words that the image speaks of rate its tokens; some of the losers come back, merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from eadp.core import Selection, checks, density_peaks, ranked
from eadp.methods.base import Need
from eadp.methods.inside import Budget, Cut, InsideMethod, LayerView, unseen

PUBLISHED_TOTAL = 576
PUBLISHED: dict[int, tuple[int, int, int]] = {192: (300, 200, 110), 128: (303, 110, 36), 64: (66, 30, 17)}
"""Tokens kept after each of the three cuts, without the recycled ones, by mean over the layers and of 576."""

_KNOTS = np.array([(0, 0, 0), PUBLISHED[64], PUBLISHED[128], PUBLISHED[192], (PUBLISHED_TOTAL,) * 3], dtype=float)


@dataclass(frozen=True)
class SparseVLM(InsideMethod):
    """Words whose input embeddings fit the image better than the mean word rate its tokens by their attention. At each
    cut the best of the dropped tokens are clustered, and each cluster comes back as one token, its mean.

    Paper: "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference" (ICML 2025). Defaults:
    layers 2, 6, 15, the three published tables, recycling of 30 % into tenths. With the recycled tokens the tables'
    means over 32 layers are 191.1, 127.7 and 63.9, so `keep` is a mean over layers by default.
    Where that leaves a choice: between the tables, counts are interpolated by what is left in the end (nothing at 0,
    all at 576); p dropped tokens come back as ⌊⌊0.3·p⌋/10⌋ clusters, no more than are kept; a recycled token stands
    where the highest-scoring member of its cluster stood. Layers scale with the model's depth.
    """

    name: ClassVar[str] = "sparsevlm"
    citation: ClassVar[str] = "SparseVLM: Visual Token Sparsification (ICML 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"language_attention"})
    merges: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("keep=192, 128, 64 of 576: published tables",)

    layers: tuple[int, ...] = (2, 6, 15)
    budget: Budget = field(default="layer_mean", kw_only=True)
    recycle: float = 0.3
    """Share of the dropped tokens that are clustered; 0 for none."""
    seed: int = 0
    """Of the noise that tells equal densities apart."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.unit_interval("recycle", self.recycle)
        if len(self.layers) != 3:
            raise ValueError(f"the published tables are for three cuts, got layers={self.layers}")

    def cuts_for_mean(self, mean: int, total: int, depth: int) -> tuple[Cut, ...]:
        for published, kept in PUBLISHED.items():
            if mean * PUBLISHED_TOTAL == published * total:
                return self._at(self._with_recycled(np.array(kept) * total / PUBLISHED_TOTAL, total), depth)
        return super().cuts_for_mean(mean, total, depth)

    def counts(self, after: int, total: int) -> tuple[int, ...]:
        end = after * PUBLISHED_TOTAL / total
        kept = np.array([np.interp(end, _KNOTS[:, 2], column) for column in _KNOTS.T]) * total / PUBLISHED_TOTAL
        first, second, _ = self._with_recycled(kept, total)
        return max(first, after), max(second, after), after

    def _with_recycled(self, kept: np.ndarray, total: int) -> tuple[int, ...]:
        left = []
        for count in kept:
            count = min(max(1, round(count)), total)
            total = count + min(self.recycled(total - count), count)
            left.append(total)
        return tuple(left)

    def recycled(self, dropped: int) -> int:
        """How many tokens come back for so many that were dropped."""
        return int(self.recycle * dropped + 1e-9) // 10

    def split(self, there: int, left: int) -> tuple[int, int]:
        """`left` of `there` tokens: so many kept as they are, and so many recycled from the others."""
        back = 0
        while back < left // 2 and self.recycled(there - left + back + 1) > back:
            back += 1
        return left - back, back

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        scores = view.attention(raters(view.visual_inputs, view.text_inputs)).mean(0)
        kept, back = self.split(len(scores), cut.keep)
        order = ranked(scores)
        again = order[kept : kept + int(self.recycle * (len(scores) - kept) + 1e-9)]
        weights = torch.zeros(cut.keep, len(scores), device=scores.device)
        weights[torch.arange(kept), order[:kept]] = 1
        heads = [order[:kept]]
        if back:
            cluster = density_peaks(view.visual[again], back, seed=self.seed)
            for index in range(back):
                # By falling score, so the first is the best.
                members = again[cluster == index]
                heads.append(members[:1])
                weights[kept + index, members] = 1 / len(members)
        indices, places = torch.cat(heads).sort()
        notes = (
            (f"{back} of the {cut.keep} tokens from layer {cut.layer} on are means of dropped ones",) if back else ()
        )
        return Selection(
            indices,
            len(scores),
            self.name,
            scores=scores,
            merge=weights[places] if back else None,
            notes=(*unseen(scores), *notes),
        )


def raters(visual: Tensor, text: Tensor) -> Tensor:
    """The words above the mean of how well they fit the image: softmax over words of v·t, averaged over visual tokens.

    visual: N×d, text: X×d, both as they come into the language model.
    """
    fit = (visual.float() @ text.float().T).softmax(dim=1).mean(0)
    above = (fit > fit.mean()).nonzero().flatten()
    return above if len(above) else torch.arange(len(text), device=text.device)
