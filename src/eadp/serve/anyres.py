"""What the families with AnyRes crops share: the whole image, its crops, and a newline after each row of the crops.

Newlines are all dropped or all kept. "kept rows" cannot be served, because the engine must know the count before the
model chooses the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from eadp.compat import get_anyres_image_grid_shape
from eadp.models.anyres import AnyresGeometry
from eadp.serve.features import Look
from eadp.serve.processing import PruningProcessor
from eadp.serve.pruning import Item
from eadp.serve.towers import TowerModel


class AnyResProcessor(PruningProcessor):
    """Mixin for the processor of a model with AnyRes crops."""

    positions = ("renumber",)

    def _newlines(self, mm_items: Any, modality: str, index: int) -> int:
        """One per row of the joined crops, as vLLM's own processor counts them."""
        config, vision = self.info.get_hf_config(), self.info.get_vision_encoder_info()
        size = mm_items[modality].get_image_size(index)
        rows, columns = get_anyres_image_grid_shape(
            (size.height, size.width), config.image_grid_pinpoints, vision.get_image_size()
        )
        _, newlines = self.info._get_num_unpadded_features(
            original_height=size.height,
            original_width=size.width,
            npatches=vision.get_patch_grid_length(),
            num_patch_height=rows,
            num_patch_width=columns,
        )
        return newlines


class AnyResModel(TowerModel):
    """Mixin for a model with AnyRes crops."""

    geometry_class: ClassVar[type[AnyresGeometry]]

    @property
    def geometry(self) -> AnyresGeometry:
        return self.geometry_class(self.config)

    def items(self, batch: dict[str, Any]) -> list[Item]:
        sizes = torch.as_tensor(batch["image_sizes"]).cpu().view(-1, 2)
        # In a batch with larger images, the processor pads with black crops.
        grids = [self.geometry.crop_grid(size.tolist()) for size in sizes]
        return [
            {"pixel_values": crops[: 1 + rows * columns], "image_sizes": size}
            for crops, size, (rows, columns) in zip(batch["pixel_values"], sizes, grids, strict=True)
        ]

    def tokens_of(self, item: Item) -> int:
        return len(item["pixel_values"]) * self.geometry.side**2

    def look(self, items: Sequence[Item], layers: Sequence[int], tower_rows: bool) -> list[Look]:
        crops = [item["pixel_values"] for item in items]
        output = self.seen(torch.cat(crops), layers)
        features = self.multi_modal_projector(output.cells).split([len(each) for each in crops])
        sizes = torch.stack([item["image_sizes"] for item in items])
        rows = [self.packed(size, each) for size, each in zip(sizes, features, strict=True)]
        images = self.encoded_images(output, [len(each) for each in rows], tower_rows, image_sizes=sizes)
        return [Look(image, each, each.shape[-1]) for image, each in zip(images, rows, strict=True)]

    def packed(self, size: Tensor, features: Tensor) -> Tensor:
        """The crops×cells×d features of an image of this size as one sequence, unpadded and with newlines."""
        return self._merge_image_patch_embeddings(size, features, strategy="spatial_unpad")
