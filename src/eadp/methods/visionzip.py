"""VisionZip: the tokens that the tower looks at, and a few for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, rank_descending, split_evenly
from eadp.core.merging import BlockMerge, add_position_before, group_means, identity_weights, join_blocks, join_rows
from eadp.methods.attention import attention_on, counted, key_cosine, tower_layers, variant, without
from eadp.methods.base import Method, Need
from eadp.methods.merged import blocks_in_sequence, crops_are_joined, merging_space

DOMINANT, CLASS, CONTEXTUAL = range(3)
"""Kinds of rows, in the order in which the joined crops send them."""


@dataclass(frozen=True)
class VisionZip(Method):
    """Keep D dominant tokens, which CLS attends to most, and merge the rest into C contextual ones; D + C = keep.

    Dominant: CLS itself and the D − 1 patches with the highest CLS attention at the tower's layer −2. Contextual: every
    ⌊rest/C⌋-th of the other patches is a target; each patch left joins the target with the most similar key (cosine of
    that layer's keys, mean over heads), and a target becomes itself plus the mean of those that joined it. Rows are
    merged before the model's projector, which takes the result.

    The language model gets CLS, the dominant patches by position, then the contextual rows. Crops and frames, each an
    image to the tower, share the budget alike, and each sends its rows in that order; one that may keep all stays as it
    is. The joined crops of LLaVA-NeXT instead send their dominant patches in the mosaic's reading order, then their CLS
    rows, then all the contextual ones, crop by crop.

    Paper: "VisionZip: Longer is Better but Not Necessary in Vision Language Models", CVPR 2025. The default is the
    authors' release. What it does not cover is ours: where the tower has no CLS, attention received stands in and D are
    all patches; where the projector takes no single row of the tower, merging is behind it, as the notes say.
    """

    name: ClassVar[str] = "visionzip"
    citation: ClassVar[str] = "VisionZip (CVPR 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention", "tower_rows"})
    merges: ClassVar[bool] = True
    by_cls: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("keep=32: 27+5", "64: 54+10", "128: 108+20", "192: 162+30")

    layer: int = -2
    """Of the tower, counted from the end. Paper."""
    contextual: int | float = 5 / 32
    """C of each crop: a share of its budget, or a count. The splits of paper and release, dominant + contextual (27+5,
    54+10, 108+20, 162+30), all have this share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        share = isinstance(self.contextual, float)
        if isinstance(self.contextual, bool) or self.contextual < 0 or (share and self.contextual >= 1):
            raise ValueError(f"contextual is a share of the budget in [0, 1), or a count (10), got {self.contextual!r}")

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (counted(self.name, self.layer, depth),)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = tower_layers(self.name, tokens, 1)
        scores, keys = attention_on(layer), layer.keys.float().mean(1)
        has_class = tokens.tower_cls is not None
        quotas = split_evenly(tokens.grids, self.count(len(tokens)))
        blocks = [
            self._block(scores[block], keys[block], quota, has_class)
            for block, quota in zip(tokens.blocks, quotas, strict=True)
        ]
        parts, sizes = [part for part, _ in blocks], [block.stop - block.start for block in tokens.blocks]
        indices, merge = join_blocks(parts, sizes, has_class)
        rows = None
        if merge is not None:
            rows = join_rows(parts, sizes)
            order = _order(tokens, rows, [kinds for _, kinds in blocks]).to(rows.device)
            rows, merge = rows[order], merge[order]
        space, notes = merging_space(tokens)
        if layer.cls is not None and not has_class:
            notes = (*notes, "the model does not project CLS: one more patch takes its place")
        return Selection(
            indices,
            len(tokens),
            variant(self.name, layer),
            quotas=tuple(quotas),
            scores=scores,
            merge=merge,
            merge_space=space,
            rows=rows,
            notes=(f"attention of tower layer {layer.layer} of {layer.depth}", *notes),
        )

    def _count(self, quota: int, has_class: bool) -> int:
        """How many of a crop's rows are contextual."""
        room = quota - has_class
        if isinstance(self.contextual, float):
            return min(int(self.contextual * quota + 0.5), room)
        if self.contextual > room:
            raise ValueError(
                f"visionzip cannot send {self.contextual} contextual tokens{' and CLS' if has_class else ''} where a "
                f"crop keeps {quota}: raise keep, or lower contextual"
            )
        return self.contextual

    def _block(self, scores: Tensor, keys: Tensor, quota: int, has_class: bool) -> tuple[BlockMerge, list[int]]:
        """What one crop sends, and of which kind each row is."""
        total, device = len(scores), scores.device
        if quota == total or quota == 0:
            return BlockMerge(torch.arange(quota, device=device)), [DOMINANT] * quota
        count = self._count(quota, has_class)
        dominant = rank_descending(scores)[: quota - count - has_class].sort().values
        rest = without(total, dominant)
        targets = rest[:: len(rest) // count][:count] if count else rest[:0]
        merge = identity_weights(torch.cat([dominant, targets]), total)
        if count:
            others = without(total, torch.cat([dominant, targets]))
            owner = torch.full((total,), -1, device=device)
            owner[others] = key_cosine(keys, others, targets).argmax(1)
            merge[len(dominant) :] += group_means(owner, count)
        rows, kinds = torch.cat([dominant, targets]), [DOMINANT] * len(dominant) + [CONTEXTUAL] * count
        if not has_class:
            return BlockMerge(rows.sort().values, merge, rows), kinds
        with_class = torch.zeros(quota, total + 1, device=device)
        with_class[0, total] = 1
        with_class[1:, :total] = merge
        return BlockMerge(add_position_before(rows, total), with_class, torch.cat([rows.new_tensor([-1]), rows])), [
            CLASS,
            *kinds,
        ]


def _order(tokens: VisualTokens, rows: Tensor, kinds: list[list[int]]) -> Tensor:
    """The rows, block after block, in the order in which the language model gets them. kinds: of each block's rows."""
    is_mosaic, place = crops_are_joined(tokens), {block: n for n, block in enumerate(blocks_in_sequence(tokens))}
    sequence = range(len(tokens)) if tokens.sequence is None else tokens.sequence.tolist()
    keys: list[tuple[int, ...]] = []
    for block, of_block in enumerate(kinds):
        for kind in of_block:
            row = len(keys)
            if not is_mosaic or block == 0:
                keys.append((place[block], row))
            else:
                keys.append((1, kind, sequence[int(rows[row])] if kind == DOMINANT else row))
    return torch.tensor(sorted(range(len(keys)), key=keys.__getitem__), dtype=torch.long)
