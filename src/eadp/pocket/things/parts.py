"""The trained parts of the models for the world of things, as the package ships them.

Each file has modules in half precision, and the names of their weights begin with the name of the module:
`vision.safetensors` the `tower` and the text encoder of its `clip`, `smol.safetensors` the `projector` and the `lora`,
`things.safetensors` the `projector` and the `language` model.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from eadp.pocket.model import ClipText
from eadp.pocket.things.model import TOWER_LAYERS, build_clip_text

FOLDER = Path(__file__).parent / "weights"
VISION = "vision"
IDENTITY = f"encoder.layers.{TOWER_LAYERS - 1}."
"""The last layer of the tower, which is the identity and not stored."""


def load_module(part: str, module: str, folder: Path = FOLDER) -> dict[str, Tensor]:
    """Load the weights of a module, in single precision.

    Raises:
        ValueError: If the file has no such module.
    """
    prefix = f"{module}."
    file = folder / f"{part}.safetensors"
    weights = {
        name.removeprefix(prefix): value.float() for name, value in load_file(file).items() if name.startswith(prefix)
    }
    if not weights:
        raise ValueError(f"{file} has no {module}")
    return weights


def load_vision(
    model: LlavaForConditionalGeneration, folder: Path = FOLDER
) -> tuple[ClipText, PreTrainedTokenizerFast]:
    """Load the tower into a model, and return the text encoder of its CLIP with its tokenizer."""
    tower = model.model.vision_tower
    missing, unexpected = tower.load_state_dict(load_module(VISION, "tower", folder), strict=False)
    if unexpected or any(not name.startswith(IDENTITY) for name in missing):
        raise ValueError(f"the tower in {folder} does not fit: it lacks {missing} and has {unexpected} in excess")
    tokenizer = load_tokenizer(folder)
    clip = build_clip_text(len(tokenizer))
    clip.load_state_dict(load_module(VISION, "clip", folder))
    return clip, tokenizer


def load_tokenizer(folder: Path = FOLDER) -> PreTrainedTokenizerFast:
    """Load the tokenizer of the text encoder and of the small language model."""
    return PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")


def fingerprint(*parts: str, folder: Path = FOLDER) -> str:
    """Return a short hash of some parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update((folder / f"{part}.safetensors").read_bytes())
    return digest.hexdigest()[:16]
