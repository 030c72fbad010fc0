"""What the families with AnyRes crops share: the whole image, its crops, and a newline after each row of the crops.

Newlines are all dropped or all kept. "kept rows" cannot be served, because the engine must know the count before the
model chooses the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

from eadp.models.family import Family
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
    """Mixin for a model with AnyRes crops.

    Attributes:
        kind: The family in `eadp.models`.
        transformers_model: The model class of transformers. Its `pack_image_features`, applied to numbers instead of
            features, shows where each token goes.
    """

    kind: ClassVar[type[Family]]
    transformers_model: ClassVar[Any]

    def items(self, batch: dict[str, Any]) -> list[Item]:
        sizes = torch.as_tensor(batch["image_sizes"]).cpu().view(-1, 2)
        # In a batch with larger images, the processor pads with black crops.
        return [
            {"pixel_values": crops[: 1 + _crops(self.config, size.tolist())], "image_sizes": size}
            for crops, size in zip(batch["pixel_values"], sizes, strict=True)
        ]

    def tokens_of(self, item: Item) -> int:
        vision = self.config.vision_config
        return len(item["pixel_values"]) * (vision.image_size // vision.patch_size) ** 2

    def look(self, items: Sequence[Item], layers: Sequence[int], tower_rows: bool) -> list[Look]:
        crops = [item["pixel_values"] for item in items]
        output = self.seen(torch.cat(crops), layers)
        features = self.multi_modal_projector(output.cells).split([len(each) for each in crops])
        sizes = torch.stack([item["image_sizes"] for item in items])
        rows = [self.packed(size, each) for size, each in zip(sizes, features, strict=True)]
        pictures = self.pictures(
            self.kind, output, [len(each) for each in rows], tower_rows, self.base_parts, image_sizes=sizes
        )
        return [Look(picture, each, each.shape[-1]) for picture, each in zip(pictures, rows, strict=True)]

    def packed(self, size: Tensor, features: Tensor) -> Tensor:
        """The crops×cells×d features of an image of this size as one sequence, unpadded and with newlines."""
        return self._merge_image_patch_embeddings(size, features, strategy="spatial_unpad")

    @property
    def base_parts(self) -> dict[str, Any]:
        """The attributes of transformers' base model that the family uses."""
        return {"pack_image_features": self.of_transformers("pack_image_features")}

    def of_transformers(self, method: str) -> Any:
        """A method of transformers' base model that uses nothing of the model but its configuration."""
        return partial(getattr(self.transformers_model, method), SimpleNamespace(config=self.config))


def _crops(config: Any, size: list[int]) -> int:
    """The number of crops of an image, without the whole image."""
    rows, columns = get_anyres_image_grid_shape(size, config.image_grid_pinpoints, config.vision_config.image_size)
    return rows * columns
