"""VidCom2: the tokens that are unlike their frame and their clip; more of them in frames that are unlike the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, rank_descending
from eadp.core.similarity import unit_rows
from eadp.methods.base import register_method
from eadp.methods.video import VideoMethod

BANDWIDTHS = tuple(2.0 ** (k + 1) for k in range(-3, 2))
"""The divisors of the squared distance in the Gaussian kernels."""
TEMPERATURE = 0.01
"""Of the softmax over frames."""


class ClipScores(NamedTuple):
    """How typical the tokens of a clip are, and what each frame may keep.

    Attributes:
        channels: ⌊d/2⌋, the channels of lowest variance, in which tokens are compared.
        clip: T×n, how typical each token is of the clip.
        frame: T×n, how typical each token is of its frame.
        shares: T, the share of its tokens that each frame keeps.
        quotas: T, the number of tokens that each frame keeps.
    """

    channels: Tensor
    clip: Tensor
    frame: Tensor
    shares: Tensor
    quotas: Tensor


@register_method
@dataclass(frozen=True)
class VidCom2(VideoMethod):
    """Keep the tokens that are least typical of their frame and of the clip, and more of them in unusual frames.

    Tokens f are rows of length 1 in the ⌊d/2⌋ channels of lowest variance. With g(f, c) = Σ_k exp(−‖f − c‖²/2^(k+1)),
    k = −3 … 1, a token is as typical as V = g(f, mean of the clip) plus F = g(f, mean of its frame). With p the softmax
    over frames of −(mean V)/0.01, frame t keeps the share b·(1 + p_t − 1/T), at most 1, of its tokens: those of lowest
    V + F. b is `keep`.

    Paper: "Video Compression Commander: Plug-and-Play Inference Acceleration for Video Large Language Models", EMNLP
    2025. Claim of the authors: LLaVA-OneVision keeps 99.6 % of its accuracy with 25 % of its tokens.

    Release, the default: Each frame keeps at least one token. Quotas are rounded one by one, so the total can differ
    from `keep`. Kept tokens keep their positions on Qwen and are renumbered on LLaVA. All newline tokens stay; on
    LLaVA-Video, those of a frame follow its kept tokens. `form="vllm"` is vLLM's version: max(T, ⌊keep·T·n⌋) tokens
    stay. If the quotas come to more, the most typical tokens of all are dropped; if they come to less, the least
    typical are added. A still image is a clip of one frame.

    Departures: `exact=True` corrects the count in the same way to exactly `keep`. With `attach(positions="keep")`, or
    with a second method inside the language model, each newline of LLaVA-Video stays at the end of its row.

    Attributes:
        form: "released", or "vllm" for vLLM's count.
    """

    name: ClassVar[str] = "vidcom2"
    citation: ClassVar[str] = "VidCom2 (EMNLP 2025)"
    newlines_after_frames: ClassVar[bool] = True

    form: Literal["released", "vllm"] = "released"

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        found = self.score(tokens)
        typical = found.clip + found.frame
        keep = torch.zeros_like(typical, dtype=torch.bool)
        for frame, (row, quota) in enumerate(zip(typical, found.quotas.tolist(), strict=True)):
            keep[frame, rank_descending(-row)[:quota]] = True
        indices = self._correct_count(keep.flatten(), typical.flatten(), len(keep)).nonzero().flatten()
        quotas = tokens.quotas(indices)
        return Selection(indices, len(tokens), self.name, quotas=quotas, scores=-typical.flatten())

    def score(self, tokens: VisualTokens) -> ClipScores:
        """Score the tokens of a clip, and divide the budget over its frames."""
        frames = tokens.frames.float()
        count, size = frames.shape[:2]
        variance = frames.flatten(0, 1).var(dim=0, correction=0)
        channels = rank_descending(-variance)[: max(1, len(variance) // 2)]
        unit = unit_rows(frames[..., channels].flatten(0, 1)).view(count, size, -1)
        clip, frame = (_typicality(unit, unit.mean(dim, keepdim=True)) for dim in ((0, 1), 1))
        unusual = (-clip.mean(1) / TEMPERATURE).softmax(0)
        shares = (self.share_of(len(tokens)) * (1 + unusual - 1 / count)).clamp(max=1)
        quotas = (shares * size).round().long().clamp(1, size)
        return ClipScores(channels, clip, frame, shares, quotas)

    def _correct_count(self, keep: Tensor, typical: Tensor, frames: int) -> Tensor:
        """Drop the most typical tokens, or add the least typical ones, until as many stay as the form asks for."""
        total = len(keep)
        if self.exact:
            target = self.count_to_keep(total)
        elif self.form == "vllm":
            target = max(frames, int(self.share_of(total) * total))
        else:
            return keep
        excess = int(keep.sum()) - target
        keep = keep.clone()
        if excess > 0:
            keep[rank_descending(typical.masked_fill(~keep, -torch.inf))[:excess]] = False
        elif excess < 0:
            keep[rank_descending((-typical).masked_fill(keep, -torch.inf))[:-excess]] = True
        return keep


def _typicality(unit: Tensor, centre: Tensor) -> Tensor:
    """Return T×n, the sum of Gaussian kernels of the distance to the centre. unit: T×n×c."""
    squared = (unit - centre).square().sum(-1)
    return torch.stack([(-squared / width).exp() for width in BANDWIDTHS]).sum(0)
