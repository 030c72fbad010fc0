"""A tiny random LLaVA with the convolutional tower of the model for photographs, and prompts for it."""

from __future__ import annotations

from functools import cache

import torch
import transformers as hf
from torch import Tensor

from eadp.models.efficientnet_lite import EfficientNetLiteConfig
from helpers import tiny

SIDE = tiny.EFFICIENTNET["image_size"]
TOKENS = 16


@cache
def model() -> hf.PreTrainedModel:
    """Return the model; the same object every time."""
    config = hf.LlavaConfig(
        vision_config=EfficientNetLiteConfig(**tiny.EFFICIENTNET, view_sizes=[8]),
        text_config=tiny.LLAMA,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        **tiny.IMAGE,
    )
    return tiny.build(config)


def inputs(images: int = 1, seed: int = 0) -> dict[str, Tensor]:
    """Build one prompt with some images, and text before and after each of them."""
    generator = torch.Generator().manual_seed(seed)

    def text(length: int) -> list[int]:
        return torch.randint(32, 200, (length,), generator=generator).tolist()

    ids = [tiny.IDS["<s>"], *text(3)]
    for _ in range(images):
        ids += [tiny.IDS["<image>"]] * TOKENS + text(4)
    return {
        "input_ids": torch.tensor([ids]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        "pixel_values": torch.randn(images, 3, SIDE, SIDE, generator=generator),
    }
