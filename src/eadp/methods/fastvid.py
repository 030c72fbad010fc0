"""FastVID: salient tokens of every frame, and merged tokens of a few frames of each segment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from eadp.core import (
    Selection,
    TextGuide,
    VisualTokens,
    cut_segments,
    density_scores,
    neighbour_cosine,
    rank_descending,
)
from eadp.core.merging import SparseRows
from eadp.core.similarity import unit_rows
from eadp.methods._attention import cls_attention, complement, label_selection, require_attention, resolve_layer
from eadp.methods._video_merging import correct_row_count, merged_selection
from eadp.methods.base import Need, Positions, register_method
from eadp.methods.settings import Range
from eadp.methods.video import VideoMethod

NEIGHBOURS = 4
"""Nearest tokens that count for the density of a token."""


class FrameTokens(NamedTuple):
    """The tokens of each of T frames, counted from the start of the frame.

    Attributes:
        segments: The range of frames of each segment.
        salient: T×s, the salient tokens, sorted.
        others: T×(n − s), the other tokens, sorted.
        density: T×(n − s), the density score of each of these.
        anchors: T, how many of them are anchors.
    """

    segments: list[slice]
    salient: Tensor
    others: Tensor
    density: Tensor
    anchors: list[int]


@register_method
@dataclass(frozen=True)
class FastVID(VideoMethod):
    """Keep the salient tokens of every frame, and merge the others into anchors of a few frames of each segment.

    A clip is cut into segments where neighbouring frames differ. Of the R tokens that a frame may keep, the (1 − d)·R
    with the highest attention are salient. The rest of the budget of a segment goes to its anchor frames: every p-th,
    counted back from the last. There the tokens with the highest density score (dense, and far from any denser token)
    are anchors. Every token of the segment that is not salient joins the nearest anchor of each anchor frame. An
    anchor becomes w·itself + (1 − w)·the mean of the c tokens that joined it, itself included, w = max(β, 1/(c + 1)).

    Paper: "FastVID: Dynamic Density Pruning for Fast Video Large Language Models", NeurIPS 2025. Claim of the authors:
    LLaVA-OneVision keeps 98.0 % of its accuracy without 90.3 % of its tokens.

    Release (LLaVA-OneVision), the default: R = ⌊n·keep⌋. Frames are compared by the vector of SigLIP's pooling head,
    and salience is that head's attention. The released density has a little random noise, ours has none. Kept tokens
    keep their positions. A still image is a clip of one frame.

    Departures: Checkpoints for transformers come without the pooling head. There, frames are compared by the mean of
    their tokens, and salience is the attention of the tower: that of CLS, or else the attention received; the notes
    of the selection say so. Each frame keeps at least one token. `exact=True` drops the rows with the least attention,
    or adds tokens with the most, until `keep` rows are left. The release's settings for Qwen2.5-VL are not reproduced.

    Attributes:
        segments: c, the number of segments at least. Release: 8.
        threshold: τ: the clip is cut between frames whose cosine is lower. Release: 0.9.
        context: d, the share of the budget for anchors. Release: 0.4.
        step: p, frames from one anchor frame to the next. Release: 4.
        beta: β, the least weight of an anchor in its own row. Release: 0.6.
        layer: The layer of the tower whose attention is used, counted from the end.
    """

    name: ClassVar[str] = "fastvid"
    citation: ClassVar[str] = "FastVID (NeurIPS 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention"})
    merges: ClassVar[bool] = True
    positions: ClassVar[Positions] = "keep"
    uses_cls_attention: ClassVar[bool] = True

    segments: Annotated[int, Range(1)] = 8
    threshold: float = 0.9
    context: Annotated[float, Range(0, 1)] = 0.4
    step: Annotated[int, Range(1)] = 4
    beta: Annotated[float, Range(0, 1)] = 0.6
    layer: int = -1

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (resolve_layer(self.name, self.layer, depth),)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = require_attention(self.name, tokens, 1)
        scores, found = cls_attention(layer), self.group_tokens(tokens)
        size = tokens.frames.shape[1]
        starts = torch.arange(len(found.salient), device=scores.device)[:, None] * size
        parts = [SparseRows.unchanged((found.salient + starts).flatten())]
        others, unit = found.others + starts, unit_rows(tokens.features)
        for segment in found.segments:
            pool = others[segment].flatten()
            for frame in range(segment.start, segment.stop):
                if found.anchors[frame]:
                    best = rank_descending(found.density[frame])[: found.anchors[frame]]
                    parts.append(self._merge_into(others[frame, best], pool, unit))
        rows = SparseRows.join(parts)
        if self.exact:
            rows = correct_row_count(rows, scores, self.count_to_keep(len(tokens)))
        rows = rows.take(rows.tokens.argsort())
        selection = merged_selection(tokens, rows, label_selection(self.name, layer), scores)
        return replace(selection, notes=(*selection.notes, *_note_missing_head(tokens)))

    def group_tokens(self, tokens: VisualTokens) -> FrameTokens:
        """Cut a clip into segments, and tell the salient tokens of each frame from the candidates for anchors."""
        (layer,) = require_attention(self.name, tokens, 1)
        frames = tokens.frames
        count, size = frames.shape[:2]
        pooled = _pooled_frames(tokens)
        vectors = frames.float().mean(1) if pooled is None else pooled
        segments = cut_segments(neighbour_cosine(vectors), self.threshold, self.segments)
        budget = max(1, int(size * self.share_of(len(tokens))))
        context = int(budget * self.context)
        attention = cls_attention(layer).view(count, size)
        salient = torch.stack([rank_descending(row)[: budget - context].sort().values for row in attention])
        others = torch.stack([complement(size, row) for row in salient])
        density = torch.stack(
            [density_scores(frame[rest], NEIGHBOURS) for frame, rest in zip(frames, others, strict=True)]
        )
        anchors = [0] * count
        for segment in segments:
            length = segment.stop - segment.start
            chosen = range(segment.stop - 1, segment.start - 1, -self.step)
            for frame in chosen:
                anchors[frame] = min(context * length // len(chosen), others.shape[1])
        return FrameTokens(segments, salient, others, density, anchors)

    def _merge_into(self, anchors: Tensor, pool: Tensor, unit: Tensor) -> SparseRows:
        """Merge the tokens of a pool into their nearest anchors, which are among them. unit: N×d."""
        owner = (unit[pool] @ unit[anchors].T).argmax(1)
        counts = torch.bincount(owner, minlength=len(anchors)).clamp(min=1)
        own = (1 / (counts + 1)).clamp(min=self.beta)
        itself = torch.arange(len(anchors), device=anchors.device)
        shares = ((1 - own) / counts)[owner]
        return SparseRows(anchors, torch.cat([itself, owner]), torch.cat([anchors, pool]), torch.cat([own, shares]))


def _pooled_frames(tokens: VisualTokens) -> Tensor | None:
    """Return T×w, the vector of the tower's pooling head for each frame, if there are any."""
    pooled = tokens.tower_cls
    return pooled if pooled is not None and len(pooled) == len(tokens.frames) else None


def _note_missing_head(tokens: VisualTokens) -> tuple[str, ...]:
    if len(tokens.frames) == 1 or _pooled_frames(tokens) is not None:
        return ()
    return ("no pooling head: frames are compared by the mean of their tokens, and attention of the tower is salience",)
