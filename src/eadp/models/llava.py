"""LLaVA-1.5, and Pixtral in LLaVA's classes: one grid of tokens per image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core.types import Grid
from eadp.models.adapter import FamilyAdapter
from eadp.models.geometry import Arrange, FamilyGeometry
from eadp.models.layout import ImageLayout, Placeholders, square_grid
from eadp.models.pixels import padded_patches, resize
from eadp.models.vision_call import TowerRows, VisionCall


class LlavaGeometry(FamilyGeometry):
    """One square grid per image. Pixtral, which is told the sizes of its images, has grids of any shape."""

    model_types = ("llava",)

    def layouts(self, call: VisionCall, placeholders: Placeholders) -> list[ImageLayout]:
        if call.arguments.get("image_sizes") is None:
            return [ImageLayout.contiguous([square_grid(length, "the image")]) for length in call.lengths]
        patch = self.config.vision_config.patch_size
        return [
            ImageLayout.contiguous([(height // patch, width // patch)]) for height, width in call.listed("image_sizes")
        ]

    def join_tokens(
        self, call: VisionCall, layouts: Sequence[ImageLayout], cells: Tensor, arrange: Arrange | None = None
    ) -> Tensor:
        if call.arguments.get("image_sizes") is None:
            return super().join_tokens(call, layouts, cells, arrange)
        # Pixtral encodes all images in one sequence.
        return cells[0]

    def padding(self, call: VisionCall, layouts: Sequence[ImageLayout]) -> Sequence[Tensor | None]:
        if call.arguments.get("image_sizes") is not None:
            return super().padding(call, layouts)
        patch = self.config.vision_config.patch_size
        return [padded_patches(pixels, patch) for pixels in cast(Tensor, call.pixels)]


class LlavaTowerAdapter(FamilyAdapter):
    """What all LLaVAs share: they read hidden states of one layer or several, and project them row by row."""

    def tower_states(self, call: VisionCall, output: Any) -> Tensor | None:
        strategy = call.arguments.get("vision_feature_select_strategy") or self.config.vision_feature_select_strategy
        layers = self._feature_layers(call)
        hidden = output.hidden_states[layers if isinstance(layers, int) else layers[-1]]
        return hidden[:, 1:] if strategy == "default" else hidden

    def tower_cells(self, call: VisionCall, output: Any) -> Tensor:
        return self._projected_states(call, output)[:, int(self.has_cls) :]

    def tower_rows(self, call: VisionCall, output: Any, layouts: Sequence[ImageLayout]) -> Sequence[TowerRows | None]:
        states = self._projected_states(call, output)
        return tower_rows_by_image(self.geometry, call, layouts, states, self.has_cls, self.arrange)

    def project(self, rows: Tensor) -> Tensor:
        return self.base.get_submodule("multi_modal_projector")(rows)

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        return self._encode(call, pixels, grid)

    def _encode(self, call: VisionCall, pixels: Tensor, grid: Grid, pooled: int = 1) -> list[Tensor]:
        """Encode with interpolated position embeddings. A token has pooled×pooled patches."""
        patch = self.config.vision_config.patch_size * pooled
        resized = resize(pixels, grid[0] * patch, grid[1] * patch)[None]
        output = self.tower(resized, output_hidden_states=True, interpolate_pos_encoding=True, return_dict=True)
        states = self._projected_states(call, output)[:, int(self.has_cls) :]
        if pooled > 1:
            cells = states.unflatten(1, (grid[0] * pooled, grid[1] * pooled)).permute(0, 3, 1, 2)
            states = F.avg_pool2d(cells, pooled).flatten(2).mT
        return [self.project(states)[0]]

    def _feature_layers(self, call: VisionCall) -> int | list[int]:
        layers = call.arguments.get("vision_feature_layer")
        return self.config.vision_feature_layer if layers is None else layers

    def _projected_states(self, call: VisionCall, output: Any) -> Tensor:
        """B×(CLS and) cells×w, the hidden states that the model projects."""
        layers = self._feature_layers(call)
        if isinstance(layers, int):
            return output.hidden_states[layers]
        return torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)


class LlavaAdapter(LlavaTowerAdapter):
    """LLaVA-1.5 on its modules, and Pixtral, whose tower has no text encoder and takes no other resolution."""

    geometry_class = LlavaGeometry

    def tower_states(self, call: VisionCall, output: Any) -> Tensor | None:
        return None if self._is_pixtral(call) else super().tower_states(call, output)

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        if self._is_pixtral(call):
            return FamilyAdapter.encode(self, call, pixels, grid)
        return super().encode(call, pixels, grid)

    def _is_pixtral(self, call: VisionCall) -> bool:
        return call.arguments.get("image_sizes") is not None


def tower_rows_by_image(
    geometry: FamilyGeometry,
    call: VisionCall,
    layouts: Sequence[ImageLayout],
    states: Tensor,
    has_cls: bool,
    arrange: Arrange | None = None,
) -> list[TowerRows | None]:
    """Split the states that a model projects by image, with the CLS token of each block.

    Args:
        geometry: The geometry of the family.
        call: The call of the vision side.
        layouts: The layouts of its images.
        states: B×(CLS and) cells×w.
        has_cls: Whether each tower sequence begins with a CLS token.
        arrange: What arranges the cells of one image. None: the geometry does.

    Returns:
        One entry per image; None where its tokens are not single rows before the projector.
    """
    if not any(geometry.has_tower_rows(layout) for layout in layouts):
        return [None] * len(layouts)
    rows = geometry.tokens_from_cells(call, layouts, states[:, int(has_cls) :], arrange)
    found = [TowerRows(each) for each in rows]
    if has_cls:
        classes = states[:, 0].split([layout.crops for layout in layouts])
        found = [
            TowerRows(each, cls if layout.block_crops == list(range(len(cls))) else cls[layout.block_crops])
            for layout, each, cls in zip(layouts, rows, classes, strict=True)
        ]
    return [each if geometry.has_tower_rows(layout) else None for layout, each in zip(layouts, found, strict=True)]
