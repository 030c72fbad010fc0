"""InternVL, Idefics3 and SmolVLM: tiles of one size, the whole image last."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from eadp.core.types import Grid, Layout
from eadp.models.family import Family, Picture, Prompt, Seen, averaged, square
from eadp.models.views import block_views, resized


def whole_first(tiles: int, cells: int, shuffle: int, layout: Layout | None = None) -> Picture:
    """A picture of tiles in the order in which methods expect them: the whole image, then its parts.

    shuffle: the side of the patches that become one token.
    """
    order = [tiles - 1, *range(tiles - 1)]
    slots = torch.arange(tiles * cells).view(tiles, cells)[order].flatten()
    grids = [square(cells, "a tile")] * tiles
    return Picture(
        grids,
        slots,
        tiles * cells,
        torch.full((tiles * cells,), -1),
        layout=layout,
        arrange=lambda rows: averaged(rows, shuffle)[order].flatten(0, 1),
        crops=tiles,
        shown=order,
    )


class InternVL(Family):
    """All tiles of an image stand in one run of placeholders, between `<img>` and `</img>`.

    The model is not told how they lie on the image, so a picture has no layout. Frames are pictures of their own.
    """

    types = ("internvl",)
    square_only = True

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        cells, shuffle = seen.lengths[0], round(1 / self.config.downsample_ratio)
        runs = [run for row in range(len(prompt.places)) for run in prompt.runs(row)]
        return [whole_first(len(run) // cells, cells, shuffle) for run in runs]

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        side = grid[0] * self.config.vision_config.patch_size[0] * round(1 / self.config.downsample_ratio)
        return [self.stock_features(resized(view, side, side)[None]).pooler_output[0]]


class Idefics3(Family):
    """Each tile is a run of placeholders behind a mark: where it lies, or that it is the whole image, the last one.

    Frames are pictures of their own.
    """

    types = ("idefics3", "smolvlm")
    text_name = "text_model"
    tower_name = "vision_model"
    square_only = True

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        if prompt.ids is None:
            raise ValueError("the tiles of an image are told apart by the marks between them: pass input_ids")
        pictures = []
        for row, ids in enumerate(prompt.ids):
            pictures += self._row(prompt.runs(row), ids)
        return pictures

    def views(self, seen: Seen, pictures: Sequence[Picture]) -> list[list[Tensor]]:
        pixels = cast(Tensor, seen.values).flatten(0, 1)
        # Prompts with fewer crops than others were padded with black ones.
        return block_views(pixels[pixels.flatten(1).any(1)], pictures)

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        side = grid[0] * self.config.vision_config.patch_size * self.config.scale_factor
        return [self.stock_features(resized(view, side, side)[None, None]).pooler_output[0]]

    def _row(self, runs: list[Tensor], ids: Tensor) -> list[Picture]:
        pictures: list[Picture] = []
        tiles: list[Tensor] = []
        for run in runs:
            tiles.append(run)
            # Every row ends with a whole image, so the mark before its last run is the mark of whole images.
            if ids[run[0] - 1] == ids[runs[-1][0] - 1]:
                pictures.append(whole_first(len(tiles), len(run), self.config.scale_factor, self._layout(tiles[:-1])))
                tiles = []
        return pictures

    def _layout(self, tiles: list[Tensor]) -> Layout | None:
        """Rows and columns of the tiles. Between two of a row stand the two tokens of a mark, between rows a line break
        too."""
        gaps = [int(after[0] - before[-1]) - 1 for before, after in itertools.pairwise(tiles)]
        rows = 1 + sum(gap > 2 for gap in gaps)
        return (rows, len(tiles) // rows) if tiles and len(tiles) % rows == 0 else None
