"""The model for photographs, assembled from its parts: a stock LLaVA."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from transformers import LlavaForConditionalGeneration, LlavaProcessor

from eadp.compat import CLIPImageProcessorPil
from eadp.models.efficientnet_lite import PIXEL_MEAN, PIXEL_STD, EfficientNetLiteConfig, EfficientNetLiteModel
from eadp.models.guides.class_words import class_words
from eadp.pocket import smol, storage
from eadp.pocket.llava import build_llava
from eadp.pocket.names import PHOTO, SMOL
from eadp.pocket.packaged import user_cache, write_once
from eadp.pocket.photo import tower as weights
from eadp.pocket.photo.visual_words import PLACE_WEIGHT, PLACE_WORDS, write_visual_words
from eadp.pocket.smol import CHAT_TEMPLATE
from eadp.pocket.things import parts

LONGEST_ANSWER = 16
"""Largest number of tokens of an answer: names of classes are longer than answers about drawn scenes."""


def checkpoint(cache: Path | None = None) -> Path:
    """Return the folder of the whole model, which is written at the first call.

    Args:
        cache: Folder for the copies; by default `eadp` in the user's cache.

    Raises:
        FileNotFoundError: If the weights of EfficientNet-Lite0 or SmolLM2 are not installed.
        ImportError: If there is no copy yet, and the package `gguf`, which reads the weights of SmolLM2, is not
            installed.
        ValueError: If an installed file is not the expected one.
    """
    return write_once(_folder(cache), lambda folder: _assemble(folder, cache))


def find_missing(cache: Path | None = None) -> str | None:
    """Say what is not installed that `checkpoint` needs; None if it is all there.

    Raises:
        ValueError: If an installed file is not the expected one.
    """
    if _folder(cache).exists():
        return None
    try:
        if not weights.WEIGHTS.copy_folder(cache).exists():
            weights.WEIGHTS.find()
        smol.check_installed(cache)
    except (FileNotFoundError, ImportError) as error:
        return str(error)
    return None


def _folder(cache: Path | None) -> Path:
    settings = [EfficientNetLiteConfig().to_dict(), class_words().names, PLACE_WORDS, PLACE_WEIGHT, CHAT_TEMPLATE]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    hashes = (weights.WEIGHTS.sha256[:8], smol.WEIGHTS.sha256[:8], parts.fingerprint(SMOL), digest[:8])
    return user_cache(cache) / "-".join((PHOTO, *hashes))


def _assemble(folder: Path, cache: Path | None) -> None:
    model, processor = build_model(weights.load_tower(cache), *smol.load_reader(cache))
    storage.save(folder, model, processor, longest_answer=LONGEST_ANSWER)


def build_model(
    tower: EfficientNetLiteModel, language_model: Any, tokenizer: Any
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Assemble a LLaVA whose visual tokens are visual words.

    Args:
        tower: The vision tower. It becomes a part of the model, not a copy.
        language_model: A causal language model with input embeddings, such as SmolLM2 as it is, or after a LoRA was
            merged into it. It becomes a part of the model; its embeddings get a row for the image token.
        tokenizer: Its tokenizer. It gets the image token.

    Returns:
        The model, in evaluation mode, and its processor.
    """
    model = build_llava(
        tower,
        language_model,
        tokenizer,
        count_tokens(tower.config),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        projector_hidden_act="linear",
        multimodal_projector_bias=False,
    )
    write_visual_words(model.model.multi_modal_projector, language_model.get_input_embeddings(), tokenizer)
    return model, build_processor(tower.config, tokenizer)


def build_processor(config: EfficientNetLiteConfig, tokenizer: Any) -> LlavaProcessor:
    """Build the processor. Images are scaled to a square, so that no part of a photograph is cut off.

    Args:
        config: The configuration of the tower.
        tokenizer: The tokenizer, with the image token.
    """
    side = config.image_size
    images = CLIPImageProcessorPil(
        size={"height": side, "width": side},
        do_center_crop=False,
        image_mean=[PIXEL_MEAN] * 3,
        image_std=[PIXEL_STD] * 3,
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=config.patch_size,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=CHAT_TEMPLATE,
    )


def count_tokens(config: EfficientNetLiteConfig) -> int:
    """The number of visual tokens of an image."""
    return (config.image_size // config.patch_size) ** 2
