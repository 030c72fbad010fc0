"""PruMerge+: the tokens that stand out and an even sample, each with what is like it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from eadp.core import (
    Selection,
    TextGuide,
    TowerAttention,
    VisualTokens,
    checks,
    outliers,
    rank_descending,
    split_evenly,
)
from eadp.core.merging import BlockMerge, add_position_after, identity_weights, join_blocks, join_rows
from eadp.methods.attention import attention_on, counted, key_cosine, received, tower_layers, variant, without
from eadp.methods.base import Method, Need
from eadp.methods.merged import blocks_in_sequence, merging_space

Among = Literal["all", "unkept"]


@dataclass(frozen=True)
class PruMerge(Method):
    """Keep tokens that stand out by CLS attention a and an even sample of the others, and let them gain what is like
    them.

    a is one softmax of q·k/√width over the full width, without heads, of the tower's last layer; the CLS row without
    its own column, not normalised again. Outliers are the tokens with a above Q3 + 1.5·IQR (where there are none, the
    highest). Even samples are every ⌊⌊1/share⌋/3⌋-th token from 0 to N − 2, share being that of the outliers, except
    those that are outliers: about three for each of them. A kept token k becomes f_k + Σ_j a_j f_j over its 32 nearest
    by cosine of keys among all the others; one more row is Σ_j a_j f_j over the unkept. Rows are merged before the
    model's projector, which takes the result.

    The language model gets the outliers by falling attention, the even samples by position, then the one more. The
    count is the image's own: there is no budget. keep=T is our rule for equal budgets: the one more, the ⌊(T − 1)/4⌉
    tokens of highest attention, and as many even samples of the others as are missing; T rows, exactly.

    Paper: "LLaVA-PruMerge: Adaptive Token Reduction for Efficient Large Multimodal Models" (2024), its variant "+". The
    default is the authors' release. By the paper's text, heads attend by themselves (`per_head`), neighbours are sought
    among the tokens that go (`among="unkept"`), and there is one even sample for each outlier (`even=1`).
    What the release does not cover is ours: crops and frames, each an image to the tower, are taken one by one, and
    share a given budget alike, where one that may keep all stays as it is; where the tower has no CLS, attention
    received (mean over heads and queries) stands in for a; where the projector takes no single row of the tower,
    merging is behind it, as the notes say.
    """

    name: ClassVar[str] = "prumerge"
    citation: ClassVar[str] = "LLaVA-PruMerge+ (2024)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention", "tower_rows"})
    merges: ClassVar[bool] = True
    by_cls: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("without keep: outliers",)

    layer: int = -1
    """Of the tower, counted from the end. Paper: the last. Where that was never trained, take the one that is read."""
    even: int = 3
    """About how many even samples there are for each outlier. Release; the paper's text has 1."""
    neighbours: int = 32
    """How many tokens a kept one gains. Paper."""
    among: Among = "all"
    """Where those are sought: among "all" the others, as in the release, or the "unkept", as in the paper's text."""
    per_head: bool = False
    """Attention as the tower has it, the mean over heads, as in the paper's text; not one softmax without heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("even", self.even)
        checks.positive("neighbours", self.neighbours)
        checks.known("among", self.among, ("all", "unkept"))

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (counted(self.name, self.layer, depth),)

    def step(self, share: float) -> int:
        """Every how many tokens there is an even sample. share: of the outliers."""
        return max(1, int(1 / share) // self.even)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = tower_layers(self.name, tokens, 1)
        scores, keys = self._attention(layer), layer.keys.flatten(1)
        order = blocks_in_sequence(tokens)
        quotas: list[int | None] = [None] * len(tokens.grids)
        if self.keep is not None:
            quotas = [*split_evenly(tokens.grids, self.count(len(tokens)))]
        parts = [
            self._block(scores[block], keys[block], quota) for block, quota in zip(tokens.blocks, quotas, strict=True)
        ]
        sizes = [block.stop - block.start for block in tokens.blocks]
        indices, merge = join_blocks(parts, sizes)
        rows = None
        if merge is not None:
            places = torch.arange(len(merge), device=merge.device).split([len(part.indices) for part in parts])
            places = torch.cat([places[block] for block in order])
            rows, merge = join_rows(parts, sizes)[places], merge[places]
        space, notes = merging_space(tokens)
        return Selection(
            indices,
            len(tokens),
            variant(self.name, layer),
            quotas=tokens.quotas(indices),
            scores=scores,
            merge=merge,
            merge_space=space,
            rows=rows,
            notes=(f"attention of tower layer {layer.layer} of {layer.depth}", *notes),
        )

    def _attention(self, layer: TowerAttention) -> Tensor:
        if layer.cls is None:
            return received(layer)
        if self.per_head:
            return attention_on(layer)
        if layer.cls_full_width is None:
            raise ValueError("prumerge goes by CLS attention without heads: TowerAttention must have `cls_full_width`")
        return layer.cls_full_width

    def _block(self, scores: Tensor, keys: Tensor, quota: int | None) -> BlockMerge:
        """What one crop sends. quota: None where the crop itself decides."""
        total = len(scores)
        if quota is not None and quota in (0, total):
            return BlockMerge(torch.arange(quota, device=scores.device))
        kept = self._outliers_and_even(scores) if quota is None else self._within(scores, quota - 1)
        taken = kept.sort().values
        unkept = without(total, taken)
        merge = identity_weights(kept, total) + self._gains(scores, keys, kept, unkept)
        if not len(unkept):
            return BlockMerge(taken, merge, kept)
        rest = merge.new_zeros(1, total)
        rest[0, unkept] = scores[unkept].to(merge)
        return BlockMerge(
            add_position_after(taken, total), torch.cat([merge, rest]), torch.cat([kept, kept.new_tensor([-1])])
        )

    def _outliers_and_even(self, scores: Tensor) -> Tensor:
        """Outliers by falling attention, then even samples by position."""
        total = len(scores)
        out = rank_descending(scores)[: max(1, int(outliers(scores).sum()))]
        even = torch.arange(0, max(1, total - 1), self.step(len(out) / total), device=scores.device)
        return torch.cat([out, even[~torch.isin(even, out)]])

    def _within(self, scores: Tensor, count: int) -> Tensor:
        """Exactly `count` tokens: by falling attention, then even samples of the others by position."""
        attended = rank_descending(scores)[: int(count / (1 + self.even) + 0.5)]
        others, missing = without(len(scores), attended), count - len(attended)
        every = torch.arange(missing, device=scores.device) * len(others) // max(1, missing)
        return torch.cat([attended, others[every]])

    def _gains(self, scores: Tensor, keys: Tensor, kept: Tensor, unkept: Tensor) -> Tensor:
        """len(kept)×N, the attention of each kept token's nearest ones."""
        cosine = key_cosine(keys, kept, torch.arange(len(keys), device=keys.device))
        cosine[torch.arange(len(kept), device=kept.device), kept] = -torch.inf
        candidates = len(scores) - 1
        if self.among == "unkept":
            cosine[:, kept] = -torch.inf
            candidates = len(unkept)
        nearest = cosine.topk(min(self.neighbours, candidates), dim=1).indices
        gains = torch.zeros(len(kept), len(scores), device=scores.device)
        return gains.scatter_(1, nearest, scores[nearest].to(gains))
