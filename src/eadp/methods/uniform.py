"""Uniform sampling: the control that keeps an even grid of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Selection, TextGuide, VisualTokens, even_cells, split_evenly
from eadp.methods.base import register_method
from eadp.methods.before import BeforeMethod


@register_method
@dataclass(frozen=True)
class Uniform(BeforeMethod):
    """Keep T tokens on an even grid: the central token of each of T even cells (`core.even_cells`).

    Crops or frames share the budget equally, and each has a grid of its own. With `whole_frames`, a clip keeps whole
    frames at even distances instead, and what is left of the budget is an even grid of one more frame.

    Paper: none, a control.

    Attributes:
        whole_frames: Keep whole frames of a clip, as if it had been sampled at fewer frames per second.
    """

    name: ClassVar[str] = "uniform"
    citation: ClassVar[str] = "control"

    whole_frames: bool = False

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        quotas = self._split(tokens, self.count_to_keep(len(tokens)))
        indices = torch.cat(
            [
                even_cells(grid, quota)[1] + block.start
                for grid, block, quota in zip(tokens.grids, tokens.blocks, quotas, strict=True)
                if quota
            ]
        )
        return Selection(indices, len(tokens), self.name, quotas=tuple(quotas))

    def _split(self, tokens: VisualTokens, count: int) -> list[int]:
        """Return how many tokens each crop or frame keeps."""
        if not (self.whole_frames and tokens.is_clip):
            return split_evenly(tokens.grids, count)
        size = tokens.frames.shape[1]
        whole, rest = divmod(count, size)
        shown = even_cells((1, len(tokens.grids)), whole + bool(rest))[1].tolist()
        sizes = dict(zip(shown, [size] * whole + [rest], strict=False))
        return [sizes.get(frame, 0) for frame in range(len(tokens.grids))]
