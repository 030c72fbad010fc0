"""VisionZip: the tokens that CLS attends to, and a few merged ones for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, TowerAttention, VisualTokens, rank_descending, split_evenly
from eadp.core.backends import choose_backend
from eadp.core.deferred import defer
from eadp.core.merging import BlockMerge, add_position_before, group_means, identity_weights, join_blocks, join_rows
from eadp.methods._attention import (
    cls_attention,
    complement,
    key_cosine,
    label_selection,
    require_attention,
    resolve_layer,
)
from eadp.methods._merging import choose_merge_space
from eadp.methods._on_device import concatenate, is_on_device
from eadp.methods._visionzip_on_device import merge_images
from eadp.methods._visionzip_rows import CLASS, CONTEXTUAL, DOMINANT, merge_on_device, order_rows
from eadp.methods.base import Need, register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.settings import Range


@register_method
@dataclass(frozen=True)
class VisionZip(BeforeMethod):
    """Keep D dominant tokens, to which CLS attends most, and merge the rest into C contextual tokens; D + C = keep.

    Dominant are CLS itself and the D − 1 patches with the highest CLS attention at layer −2 of the tower. Of the other
    patches, every ⌊rest/C⌋-th is a target. Each remaining patch joins the target with the most similar key (cosine of
    that layer's keys, mean over heads), and a target becomes itself plus the mean of the patches that joined it. Rows
    are merged before the projector, which then projects them.

    The language model receives CLS, the dominant patches by position, then the contextual rows. Crops and frames share
    the budget equally, and each sends its rows in that order; a crop that may keep everything stays as it is. The
    mosaic of crops of LLaVA-NeXT instead sends all dominant patches in reading order, then all CLS rows, then all
    contextual rows, crop by crop.

    Paper: "VisionZip: Longer is Better but Not Necessary in Vision Language Models", CVPR 2025.

    Release, the default: as described above.

    Departures: Where the tower has no CLS, attention received replaces that of CLS, and all D are patches. Where the
    projector does not accept single rows of the tower, rows are merged after it. The notes say so.

    Attributes:
        layer: The layer of the tower, counted from the end. Paper: −2.
        contextual: C per crop: a share of its budget, or a count. The splits of paper and release, dominant +
            contextual (27+5, 54+10, 108+20, 162+30), all have the default share.
    """

    name: ClassVar[str] = "visionzip"
    citation: ClassVar[str] = "VisionZip (CVPR 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention", "tower_rows"})
    merges: ClassVar[bool] = True
    uses_cls_attention: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("keep=32: 27+5", "64: 54+10", "128: 108+20", "192: 162+30")

    layer: int = -2
    contextual: Annotated[int, Range(0)] | Annotated[float, Range(0, 1, open_high=True)] = 5 / 32

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (resolve_layer(self.name, self.layer, depth),)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = require_attention(self.name, tokens, 1)
        scores, keys = cls_attention(layer), layer.keys.float().mean(1)
        has_class = tokens.tower_cls is not None
        quotas = split_evenly(tokens.grids, self.count_to_keep(len(tokens)))
        sizes = [block.stop - block.start for block in tokens.blocks]
        if choose_backend("auto", scores.device) == "triton" and self._merges(tokens):
            (selection,) = self._select_on_device([tokens])
            return selection
        if is_on_device([tokens]) and all(0 < quota < size for quota, size in zip(quotas, sizes, strict=True)):
            counts = [self._count_contextual(quota, has_class) for quota in quotas]
            merged = merge_on_device(tokens, scores, keys, quotas, counts)
            return self._selection(tokens, layer, quotas, scores, *merged)
        blocks = [
            self._merge_block(scores[block], keys[block], quota, has_class)
            for block, quota in zip(tokens.blocks, quotas, strict=True)
        ]
        parts = [part for part, _ in blocks]
        indices, merge = join_blocks(parts, sizes, has_class)
        rows = None
        if merge is not None:
            rows = join_rows(parts, sizes)
            order = order_rows(tokens, rows, [kinds for _, kinds in blocks]).to(rows.device)
            rows, merge = rows[order], merge[order]
        return self._selection(tokens, layer, quotas, scores, indices, merge, rows)

    def select_batch(self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Selection]:
        is_alike = len({tokens.tower_cls is None for tokens in batch}) == 1
        if (
            choose_backend("auto", batch[0].features.device) == "triton"
            and is_alike
            and all(self._merges(tokens) for tokens in batch)
        ):
            return self._select_on_device(batch)
        return super().select_batch(batch, texts)

    def _merges(self, tokens: VisualTokens) -> bool:
        """Return whether any block keeps some of its tokens, but not all."""
        quotas = split_evenly(tokens.grids, self.count_to_keep(len(tokens)))
        return any(0 < quota < block.stop - block.start for quota, block in zip(quotas, tokens.blocks, strict=True))

    def _select_on_device(self, batch: Sequence[VisualTokens]) -> list[Selection]:
        """Select from all images at once, without waiting for the device."""
        layers = [require_attention(self.name, tokens, 1)[0] for tokens in batch]
        quotas = [split_evenly(tokens.grids, self.count_to_keep(len(tokens))) for tokens in batch]
        has_class = batch[0].tower_cls is not None
        contextual = [
            [
                self._count_contextual(quota, has_class) if 0 < quota < block.stop - block.start else 0
                for quota, block in zip(each, tokens.blocks, strict=True)
            ]
            for each, tokens in zip(quotas, batch, strict=True)
        ]
        scores = [cls_attention(layer) for layer in layers]
        keys = concatenate([layer.keys for layer in layers]).mean(1, dtype=torch.float32)
        merged = merge_images(batch, concatenate(scores), keys, quotas, contextual)

        def problem() -> str | None:
            is_finite = bool(keys.isfinite().all()) and all(bool(each.isfinite().all()) for each in scores)
            return None if is_finite else "visionzip cannot select: the attention of the image contains NaN or infinity"

        return [
            self._selection(*each).changed(problem=defer(problem))
            for each in zip(batch, layers, quotas, scores, *zip(*merged, strict=True), strict=True)
        ]

    def _selection(
        self,
        tokens: VisualTokens,
        layer: TowerAttention,
        quotas: Sequence[int],
        scores: Tensor,
        indices: Tensor,
        merge: Tensor | None,
        rows: Tensor | None,
    ) -> Selection:
        has_class = tokens.tower_cls is not None
        space, notes = choose_merge_space(tokens)
        if layer.cls is not None and not has_class:
            notes = (*notes, "the model does not project CLS: one more patch takes its place")
        return Selection(
            indices,
            len(tokens),
            label_selection(self.name, layer),
            quotas=tuple(quotas),
            scores=scores,
            merge=merge,
            merge_space=space,
            rows=rows,
            notes=(f"attention of tower layer {layer.layer} of {layer.depth}", *notes),
        )

    def _count_contextual(self, quota: int, has_class: bool) -> int:
        """Return how many of a crop's rows are contextual."""
        room = quota - has_class
        if isinstance(self.contextual, float):
            return min(int(self.contextual * quota + 0.5), room)
        if self.contextual > room:
            raise ValueError(
                f"visionzip cannot send {self.contextual} contextual tokens{' and CLS' if has_class else ''} where a "
                f"crop keeps {quota}: raise keep, or lower contextual"
            )
        return self.contextual

    def _merge_block(self, scores: Tensor, keys: Tensor, quota: int, has_class: bool) -> tuple[BlockMerge, list[int]]:
        """Return the rows of one crop, and the kind of each."""
        total, device = len(scores), scores.device
        if quota == total or quota == 0:
            return BlockMerge(torch.arange(quota, device=device)), [DOMINANT] * quota
        count = self._count_contextual(quota, has_class)
        dominant = rank_descending(scores)[: quota - count - has_class].sort().values
        rest = complement(total, dominant)
        targets = rest[:: len(rest) // count][:count] if count else rest[:0]
        merge = identity_weights(torch.cat([dominant, targets]), total)
        if count:
            others = complement(total, torch.cat([dominant, targets]))
            target_of = torch.full((total,), -1, device=device)
            target_of[others] = key_cosine(keys, others, targets).argmax(1)
            merge[len(dominant) :] += group_means(target_of, count)
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
