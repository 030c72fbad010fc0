"""PruMerge+: the tokens that stand out and an even sample, each with what is like it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, alike, checks, even_cells, outliers, ranked
from eadp.core.merging import Part, joined, room_after, unchanged
from eadp.core.types import Grid
from eadp.methods.attention import attention_on, counted, key_cosine, tower_layers, variant, without
from eadp.methods.base import Method, Need


@dataclass(frozen=True)
class PruMerge(Method):
    """Keep tokens by CLS attention a and evenly over the image, and let them gain what is like them.

    A kept token k becomes f_k + Σ_j a_j f_j over its 32 nearest unkept tokens by cosine of keys; one more token is
    Σ_j a_j f_j over all the unkept ones. a is the mean over heads at the tower's last layer.

    The paper's count is the image's own. Without keep: all tokens with a above Q3 + 1.5·IQR, as many even ones, and the
    one more. keep=T is our rule: one token for the unkept; of the T − 1 others `attended` by attention, the rest even.

    Paper: "LLaVA-PruMerge: Adaptive Token Reduction for Efficient Large Multimodal Models" (2024), its variant "+".
    Crops and frames, each an image to the tower, share the budget alike; one that may keep all stays as it is. Where
    the tower has no CLS, attention received stands in.
    Readings of ours: nearest tokens are sought among the unkept, and the one more weighs them by a too; even tokens are
    the centres of even cells, and where one is kept already the next by attention stands in; the one more stands in its
    block's last slot that stays.
    """

    name: ClassVar[str] = "prumerge"
    citation: ClassVar[str] = "LLaVA-PruMerge+ (2024)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention"})
    merges: ClassVar[bool] = True
    by_cls: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("without keep: outliers",)

    layer: int = -1
    """Of the tower, counted from the end. Paper: the last. Where that was never trained, take the one that is read."""
    attended: float = 0.5
    """Share of kept tokens that are chosen by attention where the count is given. Ours; the paper has no such count."""
    neighbours: int = 32
    """How many unkept tokens a kept one gains. Paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.unit_interval("attended", self.attended)
        checks.positive("neighbours", self.neighbours)

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (counted(self.name, self.layer, depth),)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = tower_layers(self.name, tokens, 1)
        scores, keys = attention_on(layer), layer.keys.flatten(1)
        quotas: list[int | None] = [None] * len(tokens.grids)
        if self.keep is not None:
            quotas = [*alike(tokens.grids, self.count(len(tokens)))]
        parts = [
            self._block(scores[block], keys[block], grid, quota)
            for block, grid, quota in zip(tokens.blocks, tokens.grids, quotas, strict=True)
        ]
        indices, merge = joined(parts, [block.stop - block.start for block in tokens.blocks])
        return Selection(
            indices,
            len(tokens),
            variant(self.name, layer),
            quotas=tokens.quotas(indices),
            scores=scores,
            merge=merge,
            notes=(f"attention of tower layer {layer.layer} of {layer.depth}",),
        )

    def _block(self, scores: Tensor, keys: Tensor, grid: Grid, quota: int | None) -> Part:
        total = len(scores)
        if quota is None:
            attended = max(1, int(outliers(scores).sum()))
            quota = min(total, 2 * attended + 1)
        else:
            attended = int(self.attended * (quota - 1) + 0.5)
        if quota == total or quota == 0:
            return Part(torch.arange(quota, device=scores.device))
        kept = self._kept(scores, grid, attended, quota - 1)
        unkept = without(total, kept)
        merge = unchanged(kept, total)
        if len(kept):
            nearest = key_cosine(keys, kept, unkept).topk(min(self.neighbours, len(unkept)), dim=1).indices
            merge.scatter_add_(1, unkept[nearest], scores[unkept][nearest].to(merge))
        rest = merge.new_zeros(1, total)
        rest[0, unkept] = scores[unkept].to(merge)
        return Part(room_after(kept, total), torch.cat([merge, rest]))

    def _kept(self, scores: Tensor, grid: Grid, attended: int, count: int) -> Tensor:
        """`attended` tokens by attention, even ones, and more by attention for the even ones that were kept already."""
        rank = ranked(scores)
        kept = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        kept[rank[:attended]] = True
        if count > attended:
            kept[even_cells(grid, count - attended)[1].to(scores.device)] = True
        missing = count - int(kept.sum())
        kept[rank[~kept[rank]][:missing]] = True
        return kept.nonzero().flatten()
