"""LLaVA-1.5 (and Pixtral in LLaVA's clothes): one grid of tokens an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core.types import Grid
from eadp.models.family import Family, Picture, Prompt, Seen, TowerRows, square
from eadp.models.views import resized


def tower_states(config: Any, seen: Seen, output: Any) -> Tensor:
    """crops×cells×d: what a guide aligns: states of the layer that the model reads (the last of several), no CLS."""
    strategy = seen.arguments.get("vision_feature_select_strategy") or config.vision_feature_select_strategy
    layer = seen.arguments.get("vision_feature_layer")
    layer = config.vision_feature_layer if layer is None else layer
    hidden = output.hidden_states[layer if isinstance(layer, int) else layer[-1]]
    return hidden[:, 1:] if strategy == "default" else hidden


def read_layers(family: Family, seen: Seen, output: Any) -> Tensor:
    """crops×(CLS and) cells×d: the hidden states that the model projects."""
    layers = seen.arguments.get("vision_feature_layer")
    layers = family.config.vision_feature_layer if layers is None else layers
    if isinstance(layers, int):
        return output.hidden_states[layers]
    return torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)


def encode(family: Family, seen: Seen, view: Tensor, grid: Grid, pooled: int = 1) -> list[Tensor]:
    """Through tower and projector, with interpolated position encodings. pooled: the side of patches in one token."""
    patch = family.config.vision_config.patch_size * pooled
    pixels = resized(view, grid[0] * patch, grid[1] * patch)[None]
    output = family.tower(pixels, output_hidden_states=True, interpolate_pos_encoding=True, return_dict=True)
    states = read_layers(family, seen, output)[:, int(family.has_cls) :]
    if pooled > 1:
        cells = states.unflatten(1, (grid[0] * pooled, grid[1] * pooled)).permute(0, 3, 1, 2)
        states = F.avg_pool2d(cells, pooled).flatten(2).mT
    return [family.base.get_submodule("multi_modal_projector")(states)[0]]


def tower_rows(family: Family, seen: Seen, output: Any, pictures: Sequence[Picture]) -> list[TowerRows]:
    """The layers that the model reads, with the CLS token of each block. Its projector takes row by row."""
    states, project = read_layers(family, seen, output), family.base.get_submodule("multi_modal_projector")
    rows = family.tower_tokens(seen, pictures, states)
    if not family.has_cls:
        return [TowerRows(each, None, project) for each in rows]
    classes = states[:, 0].split([picture.crops for picture in pictures])
    return [
        TowerRows(each, cls[list(range(len(picture.grids)) if picture.shown is None else picture.shown)], project)
        for picture, each, cls in zip(pictures, rows, classes, strict=True)
    ]


class Llava(Family):
    types = ("llava",)

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        if seen.arguments.get("image_sizes") is None:
            states = tower_states(self.config, seen, output)
            grids = [square(length, "the image") for length in seen.lengths]
            return [
                Picture.plain([grid], states=rows[None], arrange=lambda aligned: aligned[0])
                for grid, rows in zip(grids, states, strict=True)
            ]
        patch = self.base.vision_tower.patch_size
        return [Picture.plain([(height // patch, width // patch)]) for height, width in seen.listed("image_sizes")]

    def tower_tokens(self, seen: Seen, pictures: Sequence[Picture], rows: Tensor) -> list[Tensor]:
        if seen.arguments.get("image_sizes") is None:
            return super().tower_tokens(seen, pictures, rows)
        # Pixtral sees all images in one sequence.
        return list(rows[0].split([len(picture) for picture in pictures]))

    def tower_rows(self, seen: Seen, output: Any, pictures: Sequence[Picture]) -> Sequence[TowerRows | None]:
        return tower_rows(self, seen, output, pictures)

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        if seen.arguments.get("image_sizes") is not None:
            return super().encode(seen, view, grid)
        return encode(self, seen, view, grid)
