"""EVS: the tokens of a clip that changed since the frame before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, even_cells, neighbour_cosine, rank_descending, split_evenly
from eadp.methods.base import register_method
from eadp.methods.video import VideoMethod

FIRST_FRAME = 255.0
"""The change of the tokens of the first frame, larger than any other."""


@register_method
@dataclass(frozen=True)
class EVS(VideoMethod):
    """Keep the first frame of a clip, and of the others the tokens that differ most from the frame before.

    The change of a token is 1 − cos to the token at the same place one frame earlier. A still background is sent once,
    and a frame in which nothing changes may send nothing.

    Paper: "Efficient Video Sampling: Pruning Temporally Redundant Tokens for Faster VLM Inference" (2025). Claim of
    the authors: the first token comes up to 4 times sooner.

    Release (vLLM), the default: max(n, ⌊keep·T·n⌋) tokens stay, at least those of one frame. vLLM's pruning rate is
    1 − keep. On Qwen, kept tokens keep their coordinates. A still image is a clip of one frame, so it stays whole.

    Departures: `exact=True` keeps exactly `keep` tokens. Where that is less than one frame, they are an even sample of
    the first frame. Cosines are computed in float32 whatever the type of the model. On Qwen, the text after a clip
    keeps its own positions, where vLLM counts on from the grid of the clip. On other models, kept tokens are
    renumbered.
    """

    name: ClassVar[str] = "evs"
    citation: ClassVar[str] = "Efficient Video Sampling (2025)"

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        scores = change_since_last_frame(tokens.frames).flatten()
        count, frame = self._count(tokens), tokens.frames.shape[1]
        notes: tuple[str, ...] = ()
        if count < frame:
            indices = _sample_first_frame(tokens, count).sort().values.to(scores.device)
            notes = (f"{count} tokens are less than one frame of {frame}: they are an even sample of the first",)
        else:
            indices = rank_descending(scores)[:count].sort().values
        quotas = tokens.quotas(indices)
        return Selection(indices, len(tokens), self.name, quotas=quotas, scores=scores, notes=notes)

    def _count(self, tokens: VisualTokens) -> int:
        total = len(tokens)
        if self.exact:
            return self.count_to_keep(total)
        wanted = int(self.keep * total) if isinstance(self.keep, float) else self.count_to_keep(total)
        return max(tokens.frames.shape[1], wanted)


def change_since_last_frame(frames: Tensor) -> Tensor:
    """Return T×n, how much each token differs from the one at its place in the frame before. frames: T×n×d."""
    change = 1 - neighbour_cosine(frames)
    return torch.cat([change.new_full((1, frames.shape[1]), FIRST_FRAME), change])


def _sample_first_frame(tokens: VisualTokens, count: int) -> Tensor:
    """Return evenly spread tokens of the first frame, which may have several crops if it is a still image."""
    blocks = 1 if tokens.is_clip else len(tokens.grids)
    quotas = split_evenly(tokens.grids[:blocks], count)
    return torch.cat(
        [
            even_cells(grid, quota)[1] + block.start
            for grid, quota, block in zip(tokens.grids, quotas, tokens.blocks, strict=False)
            if quota
        ]
    )
