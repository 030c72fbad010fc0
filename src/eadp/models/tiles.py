"""InternVL, Idefics3 and SmolVLM: tiles of one size, the whole image last."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from eadp.core.types import Grid, Layout
from eadp.models.adapter import FamilyAdapter
from eadp.models.geometry import FamilyGeometry
from eadp.models.layout import NO_NEWLINE, ImageLayout, Placeholders, Pooling, square_grid
from eadp.models.pixels import block_pixels, resize
from eadp.models.vision_call import VisionCall


def tile_layout(tiles: int, cells: int, shuffle: int, layout: Layout | None = None) -> ImageLayout:
    """The layout of an image in tiles. Its blocks are in the order that methods expect: the whole image comes first.

    Args:
        tiles: The number of tiles; the last one is the whole image.
        cells: The number of tokens per tile.
        shuffle: The side of the square of patches that becomes one token.
        layout: Where the other tiles lie on the image, where that is known.
    """
    order = [tiles - 1, *range(tiles - 1)]
    slots = torch.arange(tiles * cells).view(tiles, cells)[order].flatten()
    return ImageLayout(
        [square_grid(cells, "a tile")] * tiles,
        slots,
        tiles * cells,
        torch.full((tiles * cells,), NO_NEWLINE),
        layout=layout,
        crops=tiles,
        crop_of_block=order,
        pooling=Pooling("average", shuffle),
        cells=slots,
    )


class InternVLGeometry(FamilyGeometry):
    """All tiles of an image are one run of placeholders, between `<img>` and `</img>`.

    The model is not told where the tiles lie on the image, so an image has no layout. Each frame is an image.
    """

    model_types = ("internvl",)
    square_grids_only = True

    @property
    def shuffle(self) -> int:
        """The side of the square of patches that becomes one token."""
        return round(1 / self.config.downsample_ratio)

    def layouts(self, call: VisionCall, placeholders: Placeholders) -> list[ImageLayout]:
        cells = call.lengths[0]
        runs = [run for row in range(len(placeholders.columns)) for run in placeholders.runs(row)]
        return [tile_layout(len(run) // cells, cells, self.shuffle) for run in runs]


class InternVLAdapter(FamilyAdapter):
    """InternVL on its modules."""

    geometry_class = InternVLGeometry
    geometry: InternVLGeometry

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        side = grid[0] * self.config.vision_config.patch_size[0] * self.geometry.shuffle
        return [self.image_features(resize(pixels, side, side)[None]).pooler_output[0]]


class Idefics3Geometry(FamilyGeometry):
    """Each tile is a run of placeholders after a mark, which says where it lies or that it is the whole image.

    The whole image is the last tile. Each frame is an image.
    """

    model_types = ("idefics3", "smolvlm")
    square_grids_only = True

    def layouts(self, call: VisionCall, placeholders: Placeholders) -> list[ImageLayout]:
        if placeholders.ids is None:
            raise ValueError("the tiles of an image are told apart by the marks between them: pass input_ids")
        layouts = []
        for row, ids in enumerate(placeholders.ids):
            layouts += self._prompt_layouts(placeholders.runs(row), ids)
        return layouts

    def block_pixels(self, call: VisionCall, layouts: Sequence[ImageLayout]) -> list[list[Tensor]]:
        pixels = cast(Tensor, call.pixels).flatten(0, 1)
        # Prompts with fewer crops than others were padded with black ones.
        return block_pixels(pixels[pixels.flatten(1).any(1)], layouts)

    def _prompt_layouts(self, runs: list[Tensor], ids: Tensor) -> list[ImageLayout]:
        layouts: list[ImageLayout] = []
        tiles: list[Tensor] = []
        for run in runs:
            tiles.append(run)
            # Every prompt ends with a whole image, so the mark before its last run is the mark of whole images.
            if ids[run[0] - 1] == ids[runs[-1][0] - 1]:
                layouts.append(tile_layout(len(tiles), len(run), self.config.scale_factor, self._tile_grid(tiles[:-1])))
                tiles = []
        return layouts

    def _tile_grid(self, tiles: list[Tensor]) -> Layout | None:
        """Rows and columns of the tiles. Two tokens of a mark come between tiles of a row, more between rows."""
        gaps = [int(after[0] - before[-1]) - 1 for before, after in itertools.pairwise(tiles)]
        rows = 1 + sum(gap > 2 for gap in gaps)
        return (rows, len(tiles) // rows) if tiles and len(tiles) % rows == 0 else None


class Idefics3Adapter(FamilyAdapter):
    """Idefics3 and SmolVLM on their modules."""

    geometry_class = Idefics3Geometry
    text_name = "text_model"
    tower_name = "vision_model"

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        side = grid[0] * self.config.vision_config.patch_size * self.config.scale_factor
        return [self.image_features(resize(pixels, side, side)[None, None]).pooler_output[0]]
