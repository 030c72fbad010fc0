"""Downsampling: the control that looks at a smaller image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Grid, Selection, TextGuide, VisualTokens, largest_grid, regular_cells, split_evenly
from eadp.methods.base import Method, Need


@dataclass(frozen=True)
class Downsample(Method):
    """Scale the image down until the vision tower makes of it T tokens, and keep no other.

    Each block (crop, frame) of h×w tokens is scaled to h'×w', its share of the budget, and goes through the tower
    again. Its tokens stand where the centres of h'×w' even cells of the full grid stood. h'·w' is the most that fits
    into T with cells that are not long and thin: fewer than T stay where T has no such factors, and the notes say it.

    By family. LLaVA, LLaVA-NeXT, LLaVA-OneVision and PaliGemma: any h'×w', with interpolated position encodings.
    Gemma3, InternVL, Idefics3, SmolVLM: h' = w'. Qwen: any h'×w', its tower takes every size. Frames that are pooled
    2×2 are seen at 2h'×2w' patches. Pixtral: an error.

    Paper: none, a control; VTC-Bench shows how strong it is. It starts from the pixels that the processor made, not
    from the file, so that it works on any inputs, and tokens keep the positions of the full grid. The tower runs at
    both resolutions, so its time under `attach` is more than the control's.
    """

    name: ClassVar[str] = "downsample"
    citation: ClassVar[str] = "control"
    needs: ClassVar[frozenset[Need]] = frozenset({"pixels"})
    merges: ClassVar[bool] = True

    def resolution(self, grids: Sequence[Grid], square: bool) -> list[Grid]:
        quotas = split_evenly(grids, self.count(sum(rows * columns for rows, columns in grids)))
        return [
            largest_grid(grid, quota, square) if quota else (0, 0) for grid, quota in zip(grids, quotas, strict=True)
        ]

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        if tokens.downsampled is None or len(tokens.downsampled_grids) != len(tokens.grids):
            raise ValueError(
                "downsample needs the image at a lower resolution: VisualTokens must carry it in `extra`, its grids in "
                "`downsampled_grids`"
            )
        budget = self.count(len(tokens))
        indices = torch.cat(
            [
                regular_cells(grid, shape)[1] + block.start
                for grid, shape, block in zip(tokens.grids, tokens.downsampled_grids, tokens.blocks, strict=True)
                if 0 not in shape
            ]
        )
        merge = torch.cat([torch.zeros(len(indices), len(tokens)), torch.eye(len(indices))], dim=1)
        seen = ", ".join(f"{rows}×{columns}" for rows, columns in tokens.downsampled_grids)
        notes = [f"seen at {seen} tokens"]
        if len(indices) < budget:
            notes.append(f"{len(indices)} tokens instead of {budget}: the resolution nearest below")
        return Selection(
            indices, len(tokens), self.name, quotas=tokens.quotas(indices), merge=merge, notes=tuple(notes)
        )
