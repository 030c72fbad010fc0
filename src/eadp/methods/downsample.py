"""Downsampling: the control that encodes a smaller image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Grid, Selection, TextGuide, VisualTokens, largest_grid, regular_cells, split_evenly
from eadp.methods.base import Need, register_method
from eadp.methods.before import BeforeMethod


@register_method
@dataclass(frozen=True)
class Downsample(BeforeMethod):
    """Scale the image down until the vision tower returns T tokens for it, and keep only these.

    Each block (crop, frame) of h×w tokens is scaled to h'×w', its share of the budget, and encoded again. The new
    tokens take the places of the central tokens of h'×w' even cells of the full grid. h'·w' is the largest product that
    fits into T without long and thin cells. If T has no such factors, fewer than T tokens stay, and the notes say so.

    Families: LLaVA, LLaVA-NeXT, LLaVA-OneVision and PaliGemma accept any h'×w', with interpolated position encodings.
    Gemma 3, InternVL, Idefics3 and SmolVLM need h' = w'. Qwen accepts any h'×w'. Frames that are pooled 2×2 are encoded
    at 2h'×2w' patches. Pixtral raises an error.

    Paper: none, a control; VTC-Bench shows how strong it is. It starts from the pixels that the processor made, not
    from the file, so that it works on any inputs, and tokens keep the positions of the full grid. The tower runs at
    both resolutions, so under `attach` it takes longer than encoding a small image would.
    """

    name: ClassVar[str] = "downsample"
    citation: ClassVar[str] = "control"
    needs: ClassVar[frozenset[Need]] = frozenset({"pixels"})
    merges: ClassVar[bool] = True

    def choose_resolutions(self, grids: Sequence[Grid], square: bool) -> list[Grid]:
        quotas = split_evenly(grids, self.count_to_keep(sum(rows * columns for rows, columns in grids)))
        return [
            largest_grid(grid, quota, square) if quota else (0, 0) for grid, quota in zip(grids, quotas, strict=True)
        ]

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        if tokens.downsampled is None or len(tokens.downsampled_grids) != len(tokens.grids):
            raise ValueError(
                "downsample needs the image at a lower resolution: VisualTokens must carry it in `downsampled`, "
                "and its grids in `downsampled_grids`"
            )
        budget = self.count_to_keep(len(tokens))
        indices = torch.cat(
            [
                regular_cells(grid, shape)[1] + block.start
                for grid, shape, block in zip(tokens.grids, tokens.downsampled_grids, tokens.blocks, strict=True)
                if 0 not in shape
            ]
        )
        merge = torch.cat([torch.zeros(len(indices), len(tokens)), torch.eye(len(indices))], dim=1)
        shapes = ", ".join(f"{rows}×{columns}" for rows, columns in tokens.downsampled_grids)
        notes = [f"seen at {shapes} tokens"]
        if len(indices) < budget:
            notes.append(f"{len(indices)} tokens instead of {budget}: the next lower resolution")
        return Selection(
            indices, len(tokens), self.name, quotas=tokens.quotas(indices), merge=merge, notes=tuple(notes)
        )
