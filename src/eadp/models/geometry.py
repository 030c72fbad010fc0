"""The geometry of a family of models: everything about its visual tokens that follows from a configuration alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from eadp.models.layout import ImageLayout, Placeholders, join_layouts
from eadp.models.pixels import block_pixels, join_crops
from eadp.models.vision_call import VisionCall

Arrange = Callable[[ImageLayout, Tensor], Tensor]


class FamilyGeometry(ABC):
    """Where the visual tokens of a family are. It needs no weights, so a server can use it with modules of its own.

    Attributes:
        model_types: The `model_type`s of the configurations that belong to the family.
        modalities: What the family takes: "image", "video".
        square_grids_only: At another resolution too, the model takes only square grids.
        mrope: Positions are coordinates: time, row, column.
        answer_type: The token type that marks an answer in training; None where token types do not mark answers.
        config: The configuration of the model.
    """

    model_types: ClassVar[tuple[str, ...]]
    modalities: ClassVar[tuple[str, ...]] = ("image",)
    square_grids_only: ClassVar[bool] = False
    mrope: ClassVar[bool] = False
    answer_type: ClassVar[int | None] = None

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def model_type(self) -> str:
        """The `model_type` of the configuration."""
        return self.config.model_type

    def placeholder_id(self, modality: str) -> int:
        """The token id of the placeholders of a modality."""
        return getattr(self.config, f"{modality}_token_id")

    @abstractmethod
    def layouts(self, call: VisionCall, placeholders: Placeholders) -> list[ImageLayout]:
        """Lay out the images of one call.

        Args:
            call: The call of the vision side.
            placeholders: Where the placeholders of its modality are in the prompts.

        Returns:
            One layout per image or clip, prompt by prompt, in the order of the prompt.
        """

    def has_tower_rows(self, layout: ImageLayout) -> bool:
        """Whether each token of an image is one row before the projector, for families that project row by row."""
        return True

    def padding(self, call: VisionCall, layouts: Sequence[ImageLayout]) -> Sequence[Tensor | None]:
        """Find the tokens of each image that show only padding: N booleans; None where images are not padded.

        Args:
            call: The call of the vision side, with its pixels.
            layouts: The layouts of its images.
        """
        return [None] * len(layouts)

    def arrange(self, layout: ImageLayout, cells: Tensor) -> Tensor:
        """Arrange values of tower cells as the model arranges its features: crops×cells×c → N×c."""
        return layout.arrange(cells)

    def tokens_from_cells(
        self, call: VisionCall, layouts: Sequence[ImageLayout], cells: Tensor, arrange: Arrange | None = None
    ) -> list[Tensor]:
        """Split values of all tower cells of a call by image, and arrange them by token.

        Args:
            call: The call of the vision side.
            layouts: The layouts of its images.
            cells: B×L×c in the tower's own order, without CLS. Cells that become one token are averaged.
            arrange: What arranges the cells of one image. None: `self.arrange`.

        Returns:
            N×c for each image.
        """
        return list(self.join_tokens(call, layouts, cells, arrange).split([len(layout) for layout in layouts]))

    def join_tokens(
        self, call: VisionCall, layouts: Sequence[ImageLayout], cells: Tensor, arrange: Arrange | None = None
    ) -> Tensor:
        """Do as `tokens_from_cells` does, but return the tokens of all images as one matrix."""
        return arrange_images(arrange or self.arrange, layouts, cells)

    def block_pixels(self, call: VisionCall, layouts: Sequence[ImageLayout]) -> list[list[Tensor]]:
        """Cut the pixels of a call into blocks: …×3×height×width for each block of each image."""
        return block_pixels(join_crops(cast(Tensor, call.pixels), layouts), layouts)


def arrange_images(arrange: Arrange, layouts: Sequence[ImageLayout], cells: Tensor) -> Tensor:
    """Arrange values of the tower cells of several images: crops×cells×c → N×c, image after image.

    Args:
        arrange: What arranges the cells of one image.
        layouts: The layouts of the images.
        cells: The cells of all their crops, without CLS.
    """
    if len(layouts) == 1:
        return arrange(layouts[0], cells)
    if (joined := join_layouts(layouts, cells.shape[1])) is not None:
        return arrange(joined, cells)
    parts = cells.split([layout.crops for layout in layouts])
    return torch.cat([arrange(layout, part) for layout, part in zip(layouts, parts, strict=True)])
