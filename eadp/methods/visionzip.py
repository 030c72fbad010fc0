"""VisionZip: the tokens that the tower looks at, and a few for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, alike, ranked
from eadp.core.merging import Part, group_means, joined, room_before, unchanged
from eadp.methods.attention import attention_on, counted, key_cosine, tower_layers, variant, without
from eadp.methods.base import Method, Need


@dataclass(frozen=True)
class VisionZip(Method):
    """Keep D dominant tokens, which CLS attends to most, and merge the rest into C contextual ones; D + C = T.

    Dominant: CLS itself and the D − 1 patches with the highest CLS attention at the tower's layer −2. Contextual: every
    ⌊rest/C⌋-th of the other patches is a target; each patch left joins the target with the most similar key (cosine of
    that layer's keys, mean over heads), and a target becomes itself plus the mean of those that joined it.

    Paper: "VisionZip: Longer is Better but Not Necessary in Vision Language Models", CVPR 2025. Splits are its own.
    Crops and frames, each an image to the tower, share the budget alike; one that may keep all stays as it is. Where
    the tower has no CLS, attention received stands in; where the model cannot project CLS, a patch takes its place.
    Deviations: contextual tokens stand where their targets stood, not behind all the dominant ones; CLS takes the first
    slot of its block that stays, and kept tokens before the first free slot move back by one.
    """

    name: ClassVar[str] = "visionzip"
    citation: ClassVar[str] = "VisionZip (CVPR 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention"})
    merges: ClassVar[bool] = True
    by_cls: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("keep=32: 27+5", "64: 54+10", "128: 108+20", "192: 162+30")

    layer: int = -2
    """Of the tower, counted from the end. Paper."""
    contextual: float = 5 / 32
    """C/T. The paper's splits, dominant + contextual (27+5, 54+10, 108+20, 162+30), all have this share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.contextual < 1:
            raise ValueError(f"contextual is a share of the budget in [0, 1), got {self.contextual}")

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (counted(self.name, self.layer, depth),)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = tower_layers(self.name, tokens, 1)
        scores, keys = attention_on(layer), layer.keys.float().mean(1)
        has_class = tokens.extra is not None
        quotas = alike(tokens.grids, self.count(len(tokens)))
        parts = [
            self._block(scores[block], keys[block], quota, has_class)
            for block, quota in zip(tokens.blocks, quotas, strict=True)
        ]
        indices, merge = joined(parts, [block.stop - block.start for block in tokens.blocks], has_class)
        notes = [f"attention of tower layer {layer.layer} of {layer.depth}"]
        if layer.cls is not None and not has_class:
            notes.append("the model does not project CLS: one more patch takes its place")
        return Selection(
            indices,
            len(tokens),
            variant(self.name, layer),
            quotas=tuple(quotas),
            scores=scores,
            merge=merge,
            notes=tuple(notes),
        )

    def _block(self, scores: Tensor, keys: Tensor, quota: int, has_class: bool) -> Part:
        total = len(scores)
        if quota == total or quota == 0:
            return Part(torch.arange(quota, device=scores.device))
        count = min(int(self.contextual * quota + 0.5), quota - has_class)
        dominant = ranked(scores)[: quota - count - has_class]
        rest = without(total, dominant)
        targets = rest[:: len(rest) // count][:count] if count else rest[:0]
        kept = torch.cat([dominant, targets]).sort().values
        merge = unchanged(kept, total)
        if count:
            others = without(total, kept)
            owner = torch.full((total,), -1, device=scores.device)
            owner[others] = targets[key_cosine(keys, others, targets).argmax(1)]
            merge += group_means(torch.searchsorted(kept, owner).where(owner >= 0, -1), len(kept))
        if not has_class:
            return Part(kept, merge)
        with_class = torch.zeros(quota, total + 1, device=scores.device)
        with_class[0, total] = 1
        with_class[1:, :total] = merge
        return Part(room_before(kept, total), with_class)
