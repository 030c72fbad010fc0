"""Save and load the pocket model. Weights are stored in half precision and loaded in single precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save_file
from transformers import (
    GenerationConfig,
    LlavaForConditionalGeneration,
    LlavaNextVideoForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from eadp.pocket.model import ClipText

M = TypeVar("M", bound=PreTrainedModel)
WEIGHTS = Path(__file__).parent / "weights"
_CLIP_CONFIG, _CLIP_WEIGHTS, _CLIP_TOKENIZER = "clip_text.json", "clip_text.safetensors", "clip_tokenizer"
LONGEST_ANSWER = 8
"""Largest number of tokens of an answer."""

SIGN = 1.0
"""The sign of the similarity. The pocket CLIP is trained per patch, so patches of the named thing have high cosines."""


def save(
    folder: Path,
    model: LlavaForConditionalGeneration | LlavaNextVideoForConditionalGeneration,
    processor: LlavaProcessor,
    clip: ClipText | None = None,
    clip_tokenizer: PreTrainedTokenizerFast | None = None,
    longest_answer: int = LONGEST_ANSWER,
) -> None:
    """Write everything that `pocket.load` and `pocket.guide` need into a folder.

    Args:
        folder: The folder. It is created if needed.
        model: The model.
        processor: Its processor.
        clip: The text encoder of its CLIP, if it has one.
        clip_tokenizer: The tokenizer of the text encoder, if it is not the processor's.
        longest_answer: Largest number of tokens of an answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        max_new_tokens=longest_answer,
        pad_token_id=processor.tokenizer.pad_token_id,
        bos_token_id=processor.tokenizer.bos_token_id,
        eos_token_id=processor.tokenizer.eos_token_id,
    )
    model.half().save_pretrained(folder)
    model.float()
    processor.save_pretrained(folder)
    if clip is None:
        return
    settings = {**clip.text_model.config.to_diff_dict(), "sign": SIGN}
    (folder / _CLIP_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
    save_file({name: value.half().contiguous() for name, value in clip.state_dict().items()}, folder / _CLIP_WEIGHTS)
    if clip_tokenizer is not None:
        clip_tokenizer.save_pretrained(folder / _CLIP_TOKENIZER)


def load_model(folder: Path, kind: type[M] = LlavaForConditionalGeneration) -> M:  # type: ignore[assignment]
    """Load the model, of this class, from a folder that `save` wrote."""
    import eadp.models.efficientnet_lite  # noqa: F401 (transformers then knows this vision tower)

    _check_folder(folder)
    return kind.from_pretrained(folder, dtype=torch.float32, use_safetensors=True).eval()


def load_processor(folder: Path) -> LlavaProcessor:
    """Load the processor from a folder that `save` wrote."""
    _check_folder(folder)
    return LlavaProcessor.from_pretrained(folder, backend="pil")


def _check_folder(folder: Path) -> None:
    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            f"there is no pocket model in {folder}: give a folder that `make pocket` wrote, or no folder for the model "
            "that ships with the package"
        )
