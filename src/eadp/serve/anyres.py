"""Shared code of the families with AnyRes crops: the whole image, its crops, and a newline after each row of crops.

Newlines are all dropped or all kept. "kept rows" cannot be served, because the engine must know the number of tokens
before the model selects them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from eadp.compat import get_anyres_image_grid_shape
from eadp.models.anyres import AnyresGeometry
from eadp.serve.features import EncodedFeatures
from eadp.serve.llava_base import LlavaPruningModel
from eadp.serve.processing import PruningProcessor
from eadp.serve.pruning import Item


class AnyResPruningProcessor(PruningProcessor):
    """Mixin for the vLLM processor of a model with AnyRes crops."""

    positions = ("renumber",)

    def _count_newlines(self, mm_items: Any, modality: str, index: int) -> int:
        """Return the number of newlines, one per row of the joined crops, as vLLM's own processor counts them."""
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


class AnyResPruningModel(LlavaPruningModel):
    """Mixin for a vLLM model with AnyRes crops."""

    geometry_class: ClassVar[type[AnyresGeometry]]

    @property
    def geometry(self) -> AnyresGeometry:
        return self.geometry_class(self.config)

    def split_batch(self, batch: dict[str, Any]) -> list[Item]:
        sizes = torch.as_tensor(batch["image_sizes"]).cpu().view(-1, 2)
        # In a batch with larger images, the processor pads with black crops; drop these.
        grids = [self.geometry.crop_grid(size.tolist()) for size in sizes]
        return [
            {"pixel_values": crops[: 1 + rows * columns], "image_sizes": size}
            for crops, size, (rows, columns) in zip(batch["pixel_values"], sizes, grids, strict=True)
        ]

    def count_tower_tokens(self, item: Item) -> int:
        return len(item["pixel_values"]) * self.geometry.side**2

    def encode_items(
        self, items: Sequence[Item], layers: Sequence[int], outputs: Sequence[str]
    ) -> list[EncodedFeatures]:
        crops = [item["pixel_values"] for item in items]
        output = self.run_tower(torch.cat(crops), layers)
        features = self.multi_modal_projector(output.cells).split([len(each) for each in crops])
        sizes = torch.stack([item["image_sizes"] for item in items])
        rows = [self.pack_crops(size, each) for size, each in zip(sizes, features, strict=True)]
        images = self.build_encoded_images(output, [len(each) for each in rows], outputs, image_sizes=sizes)
        return [EncodedFeatures(image, each, each.shape[-1]) for image, each in zip(images, rows, strict=True)]

    def pack_crops(self, size: Tensor, features: Tensor) -> Tensor:
        """Join the features of an image's crops into one sequence, without padding and with newlines.

        Args:
            size: 2, the height and width of the image in pixels.
            features: crops×cells×d, the projected features.

        Returns:
            length×d, one row per placeholder.
        """
        return self._merge_image_patch_embeddings(size, features, strategy="spatial_unpad")
