"""V-CAST: more tokens for the frames at which a clip changes its course."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, rank_descending
from eadp.core.similarity import unit_rows
from eadp.methods.base import Positions, register_method
from eadp.methods.settings import Range
from eadp.methods.video import VideoMethod

EPSILON = 1e-6
"""Added to the range of norms that scores are divided by."""


class CurvedClip(NamedTuple):
    """How a clip bends, and what its frames and tokens are worth.

    Attributes:
        curvature: T, how much the clip changes its direction at each frame.
        weights: T, the share of the budget that goes to each frame.
        quotas: T, the number of tokens that each frame keeps.
        scores: N, what each token is worth in its frame.
    """

    curvature: Tensor
    weights: Tensor
    quotas: Tensor
    scores: Tensor


@register_method
@dataclass(frozen=True)
class VCAST(VideoMethod):
    """Keep more tokens of the frames at which a clip changes its course, and in a frame those that stand out.

    r_t is the mean of frame t, scaled to length 1. The curvature 1 − cos(r_t − r_{t−1}, r_{t+1} − r_t) is 1 for the
    first and the last frame. Its softmax divides the budget. A token is worth 1 − cos to r_t, plus its norm scaled to
    [0, 1] within the frame.

    Paper: "V-CAST: Video Curvature-Aware Spatio-Temporal Pruning" (arXiv 2603.27650, 2026). Claim of the authors:
    Qwen3-VL-8B keeps 98.6 % of its accuracy with 25 % of its tokens.

    Release, the default: Quotas are rounded down, and what is left over goes to the frame with the largest fraction
    until it is full, then to the next. A clip of one frame, and so a still image, stays whole. Kept tokens keep their
    positions and DeepStack features.

    Departures: `exact=True` also prunes a single frame, and lets frames stay empty where there are fewer tokens than
    `at_least` asks for. The release prunes no batches; we prune clip by clip.

    Attributes:
        temperature: Of the softmax over frames. Release: 0.7.
        at_least: The tokens that each frame keeps at least. Release: 1.
    """

    name: ClassVar[str] = "vcast"
    citation: ClassVar[str] = "V-CAST (2026)"
    positions: ClassVar[Positions] = "keep"

    temperature: Annotated[float, Range(0, open_low=True)] = 0.7
    at_least: Annotated[int, Range(0)] = 1

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        found = self.score(tokens)
        per_frame = found.scores.view(len(found.quotas), -1)
        size = per_frame.shape[1]
        kept = [
            rank_descending(scores)[:quota] + frame * size
            for frame, (scores, quota) in enumerate(zip(per_frame, found.quotas.tolist(), strict=True))
        ]
        indices = torch.cat(kept).sort().values
        return Selection(indices, len(tokens), self.name, quotas=tokens.quotas(indices), scores=found.scores)

    def score(self, tokens: VisualTokens) -> CurvedClip:
        """Score the frames and tokens of a clip, and divide the budget over its frames."""
        frames = tokens.frames.float()
        means = unit_rows(frames.mean(1), "frame means")
        curvature = _curvature(means)
        weights = (curvature.double() / self.temperature).softmax(0)
        quotas = self._quotas(weights, frames.shape[1])
        norms = frames.norm(dim=-1)
        low, high = norms.amin(1, keepdim=True), norms.amax(1, keepdim=True)
        unlike = 1 - (unit_rows(frames.flatten(0, 1)).view_as(frames) @ means[..., None])[..., 0]
        return CurvedClip(curvature, weights, quotas, (unlike + (norms - low) / (high - low + EPSILON)).flatten())

    def _quotas(self, weights: Tensor, size: int) -> Tensor:
        """Divide the budget over T frames of `size` tokens."""
        frames, at_least = len(weights), min(self.at_least, size)
        if frames == 1 and not self.exact:
            return torch.tensor([size])
        budget = self.count_to_keep(frames * size)
        if self.exact and budget < frames * at_least:
            at_least = 0
        raw = weights * (max(budget, frames * at_least) - frames * at_least)
        quotas = at_least + raw.floor().long().clamp(max=size - at_least)
        left = max(budget, frames * at_least) - int(quotas.sum())
        # The first and the last frame always have the same weight, and rounding must not decide between them.
        for frame in rank_descending((raw - raw.floor()).round(decimals=9)).tolist():
            more = min(left, size - int(quotas[frame]))
            quotas[frame] += more
            left -= more
        return quotas


def _curvature(means: Tensor) -> Tensor:
    """Return T, how much the direction changes at each frame; 1 for the first and the last. means: T×d."""
    steps = unit_rows(means.diff(dim=0), "steps")
    curvature = means.new_ones(len(means))
    curvature[1:-1] = 1 - (steps[:-1] * steps[1:]).sum(1)
    return curvature
