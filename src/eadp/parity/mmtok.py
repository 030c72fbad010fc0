"""Replay of MMTok: its selection, the words that it takes from a question, and the padding that it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eadp.core import TextGuide, VisualTokens
from eadp.methods.mmtok import ANSWER_REQUESTS, STOP_WORDS, MMTok
from eadp.models.pixels import padded_patches
from eadp.parity.vectors import GoldenVector

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run MMTok on the vector's inputs and return its outputs by name."""
    settings = vector.settings
    if settings.get("kind") == "text and padding":
        return _replay_words_and_padding(vector)
    rows, columns = settings["grid"]
    padding = None
    if "padding" in vector:
        # Patches of any size give the same share of padding: the grid is what counts.
        padding = padded_patches(_padded_pixels(settings["image_size"], 14 * rows), 14)
    method = MMTok(
        keep=settings["K"],
        alpha=settings["alpha"],
        text_temperature=settings["tv_temp"],
        vision_temperature=settings["vv_temp"],
    )
    tokens = VisualTokens(
        vector["vision"],
        vector["vision"],
        [(rows, columns)],
        tower_features=vector["vision_tower"],
        padding=padding,
    )
    selection = method.select(tokens, TextGuide(vector["text"], None))
    found = {"kept": selection.indices, "order": selection.order, "gains": selection.gains}
    return found if padding is None else {**found, "padding": padding.nonzero().flatten()}


def _replay_words_and_padding(vector: GoldenVector) -> dict[str, Any]:
    arrays, settings = vector.arrays, vector.settings
    if set(arrays["stop_words"].tolist()) != STOP_WORDS or tuple(arrays["prompts"].tolist()) != ANSWER_REQUESTS:
        raise ValueError("the vector was recorded with other stop words or requests for a short answer than ours")
    method = MMTok(keep=1, words="keywords")
    keywords = [method.text_to_encode(question) for question in arrays["questions"].tolist()]
    padding = [
        padded_patches(_padded_pixels(size, settings["target_size"]), settings["patch_size"]).nonzero().flatten()
        for size in arrays["sizes"].tolist()
    ]
    return {
        "keywords": np.array(keywords),
        "padding": torch.cat(padding),
        "padding_counts": torch.tensor([len(each) for each in padding]),
        "kept": torch.empty(0, dtype=torch.long),
    }


def _padded_pixels(size: Sequence[int], target: int) -> Tensor:
    """Return 3×target×target: noise of this size, prepared as LLaVA prepares an image.

    Args:
        size: Width and height of the image.
        target: The side of the square that the vision tower takes.
    """
    width, height = size
    side = max(width, height)
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    square = Image.new("RGB", (side, side), tuple(int(255 * mean) for mean in CLIP_MEAN))
    square.paste(Image.fromarray(noise), ((side - width) // 2, (side - height) // 2))
    scaled = np.asarray(square.resize((target, target), Image.Resampling.BICUBIC), dtype=np.float32) / 255
    return torch.from_numpy((scaled - CLIP_MEAN) / CLIP_STD).float().permute(2, 0, 1)
