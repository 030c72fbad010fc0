"""PruMerge+: outliers of attention and an even sample, each merged with similar tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from eadp.core import (
    Selection,
    TextGuide,
    TowerAttention,
    VisualTokens,
    outliers,
    rank_descending,
    split_evenly,
)
from eadp.core.merging import BlockMerge, add_position_after, identity_weights, join_blocks, join_rows
from eadp.methods._attention import (
    cls_attention,
    complement,
    key_cosine,
    label_selection,
    received_attention,
    require_attention,
    resolve_layer,
)
from eadp.methods._merging import choose_merge_space, order_blocks
from eadp.methods.base import Need, register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.settings import Range

Among = Literal["all", "unkept"]


@register_method
@dataclass(frozen=True)
class PruMerge(BeforeMethod):
    """Keep the outliers of CLS attention and an even sample of the other tokens, and merge similar tokens into them.

    The attention a is one softmax of q·k/√width over the full width, without heads, in the last layer of the tower: the
    CLS row without its own column, not normalised again. Outliers are tokens with a above Q3 + 1.5·IQR (the highest
    token if there are none). Even samples are every ⌊⌊1/share⌋/3⌋-th token from 0 to N − 2, where share is that of the
    outliers, without those that are outliers: about three per outlier. A kept token k becomes f_k + Σ_j a_j f_j over
    its 32 nearest tokens by cosine of keys. One additional row is Σ_j a_j f_j over the unkept tokens. Rows are merged
    before the projector, which then projects them.

    The language model receives the outliers by falling attention, the even samples by position, then the additional
    row. The image decides how many there are; the method has no budget of its own.

    Paper: "LLaVA-PruMerge: Adaptive Token Reduction for Efficient Large Multimodal Models" (2024), its variant "+".

    Release, the default: as described above. The paper's text differs: heads attend separately (`per_head`), neighbours
    are sought among the unkept tokens (`among="unkept"`), and there is one even sample per outlier (`even=1`).

    Departures: `keep=T` is our rule for equal budgets: the additional row, the ⌊(T − 1)/4⌉ tokens of highest attention,
    and even samples of the others, T rows in total. Crops and frames are pruned one by one and share a given budget
    equally; a crop that may keep everything stays as it is. Where the tower has no CLS, attention received (mean over
    heads and queries) replaces a. Where the projector does not accept single rows of the tower, rows are merged after
    it, and the notes say so.

    Attributes:
        layer: The layer of the tower, counted from the end. Paper: the last. If the last layer was never trained, use
            the one that the model reads.
        even: About how many even samples there are per outlier. Release: 3; paper: 1.
        neighbours: How many tokens are merged into a kept token. Paper: 32.
        among: Where these are sought: among "all" other tokens (release), or the "unkept" (paper).
        per_head: Average the attention of the tower's heads (paper) instead of one softmax without heads.
    """

    name: ClassVar[str] = "prumerge"
    citation: ClassVar[str] = "LLaVA-PruMerge+ (2024)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention", "tower_rows"})
    merges: ClassVar[bool] = True
    uses_cls_attention: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("without keep: outliers",)

    layer: int = -1
    even: Annotated[int, Range(1, 1024)] = 3
    neighbours: Annotated[int, Range(1)] = 32
    among: Among = "all"
    per_head: bool = False

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (resolve_layer(self.name, self.layer, depth),)

    def sampling_step(self, share: float) -> int:
        """Return the distance between even samples. share: the share of outliers among the tokens."""
        return max(1, int(1 / share) // self.even)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = require_attention(self.name, tokens, 1)
        scores, keys = self._attention(layer), layer.keys.flatten(1)
        order = order_blocks(tokens)
        quotas: list[int | None] = [None] * len(tokens.grids)
        if self.keep is not None:
            quotas = [*split_evenly(tokens.grids, self.count_to_keep(len(tokens)))]
        parts = [
            self._merge_block(scores[block], keys[block], quota)
            for block, quota in zip(tokens.blocks, quotas, strict=True)
        ]
        sizes = [block.stop - block.start for block in tokens.blocks]
        indices, merge = join_blocks(parts, sizes)
        rows = None
        if merge is not None:
            by_block = torch.arange(len(merge), device=merge.device).split([len(part.indices) for part in parts])
            permutation = torch.cat([by_block[block] for block in order])
            rows, merge = join_rows(parts, sizes)[permutation], merge[permutation]
        space, notes = choose_merge_space(tokens)
        return Selection(
            indices,
            len(tokens),
            label_selection(self.name, layer),
            quotas=tokens.quotas(indices),
            scores=scores,
            merge=merge,
            merge_space=space,
            rows=rows,
            notes=(f"attention of tower layer {layer.layer} of {layer.depth}", *notes),
        )

    def _attention(self, layer: TowerAttention) -> Tensor:
        if layer.cls is None:
            return received_attention(layer)
        if self.per_head:
            return cls_attention(layer)
        if layer.cls_full_width is None:
            raise ValueError("prumerge needs CLS attention without heads: TowerAttention must have `cls_full_width`")
        return layer.cls_full_width

    def _merge_block(self, scores: Tensor, keys: Tensor, quota: int | None) -> BlockMerge:
        """Return the rows of one crop. quota: None where the crop itself decides."""
        total = len(scores)
        if quota is not None and quota in (0, total):
            return BlockMerge(torch.arange(quota, device=scores.device))
        kept = self._outliers_and_samples(scores) if quota is None else self._exactly(scores, quota - 1)
        slots = kept.sort().values
        unkept = complement(total, slots)
        merge = identity_weights(kept, total) + self._absorbed(scores, keys, kept, unkept)
        if not len(unkept):
            return BlockMerge(slots, merge, kept)
        additional = merge.new_zeros(1, total)
        additional[0, unkept] = scores[unkept].to(merge)
        rows = torch.cat([kept, kept.new_tensor([-1])])
        return BlockMerge(add_position_after(slots, total), torch.cat([merge, additional]), rows)

    def _outliers_and_samples(self, scores: Tensor) -> Tensor:
        """Return outliers by falling attention, then even samples by position."""
        total = len(scores)
        outlying = rank_descending(scores)[: max(1, int(outliers(scores).sum()))]
        step = self.sampling_step(len(outlying) / total)
        samples = torch.arange(0, max(1, total - 1), step, device=scores.device)
        return torch.cat([outlying, samples[~torch.isin(samples, outlying)]])

    def _exactly(self, scores: Tensor, count: int) -> Tensor:
        """Return `count` tokens: the highest by falling attention, then even samples of the others by position."""
        highest = rank_descending(scores)[: int(count / (1 + self.even) + 0.5)]
        others, missing = complement(len(scores), highest), count - len(highest)
        samples = torch.arange(missing, device=scores.device) * len(others) // max(1, missing)
        return torch.cat([highest, others[samples]])

    def _absorbed(self, scores: Tensor, keys: Tensor, kept: Tensor, unkept: Tensor) -> Tensor:
        """Return len(kept)×N, the weights of the tokens that are merged into each kept token."""
        cosine = key_cosine(keys, kept, torch.arange(len(keys), device=keys.device))
        cosine[torch.arange(len(kept), device=kept.device), kept] = -torch.inf
        candidates = len(scores) - 1
        if self.among == "unkept":
            cosine[:, kept] = -torch.inf
            candidates = len(unkept)
        nearest = cosine.topk(min(self.neighbours, candidates), dim=1).indices
        weights = torch.zeros(len(kept), len(scores), device=scores.device)
        return weights.scatter_(1, nearest, scores[nearest].to(weights))
