"""The memory of a model and of one prefill, computed from the configuration alone, and the memory of the machine.

Weights and the KV cache are exact. Activations are an estimate of the peak with fused attention: the inputs and outputs
of a linear layer, and the outputs of the vision tower that the model still holds. `tests/measure/test_plan.py` compares
them with the tensors that torch really keeps.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from eadp.architectures.configs import build_meta_model, build_text_encoder, text_encoder_config
from eadp.core import Grid, checks

UNITS = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class Footprint:
    """The memory of a prefill in bytes.

    Attributes:
        weights: The model and the text encoder of its guide.
        cache: Keys and values.
        activations: The peak of everything else.
    """

    weights: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of weights, cache and activations."""
        return self.weights + self.cache + self.activations


def compute_footprint(
    model: Any, weights: int, grids: list[Grid], keep: int | None, text: int, dtype: torch.dtype, batch: int = 1
) -> Footprint:
    """Compute the memory of a prefill.

    Args:
        model: A model from `build_meta_model`.
        weights: Its `weight_bytes`.
        grids: The grids of the image's blocks of tokens.
        keep: Number of visual tokens that stay; None for all.
        text: Number of text tokens per prompt, answer included.
        dtype: The type of cache and activations.
        batch: Number of prompts, with one image per prompt.
    """
    tokens = sum(prod(grid) for grid in grids)
    left = tokens if keep is None else min(keep, tokens)
    active = count_activations(model, grids, tokens + text, left + text)
    cache = (left + text) * cache_bytes_per_token(model.config, dtype)
    return Footprint(weights, batch * cache, batch * active * dtype.itemsize)


def weight_bytes(model: Any, dtype: torch.dtype) -> int:
    """Compute the size of the weights of a model and of the text encoder of its guide."""
    numbers = sum(weight.numel() for weight in model.parameters())
    encoder = text_encoder_config(model.config)
    if encoder is not None:
        with torch.device("meta"):
            numbers += sum(weight.numel() for weight in build_text_encoder(encoder).parameters())
        if encoder.model_type == "clip_text_model":
            numbers += encoder.projection_dim * (encoder.hidden_size + model.config.vision_config.hidden_size)
    return numbers * dtype.itemsize


def cache_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Compute the size of the keys and values of one token in all layers."""
    text = config.text_config
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * text.num_key_value_heads * head * dtype.itemsize


def count_activations(model: Any, grids: list[Grid], length: int, left: int) -> int:
    """Estimate how many numbers are alive at the peak of one prompt's prefill.

    The peak is the largest of three:

    - Vision tower: per patch, three vectors of the hidden width and two of the MLP width, or three if the MLP is gated.
    - Selection: the visual tokens in the space of the text, and either a normalized copy of them or the similarity
      matrix of the largest block.
    - Language model: the embeddings of the prompt and the features of the image, and per remaining token three vectors
      of the hidden width and three of the MLP width.

    In addition, the LLaVA families hold the output of every layer of the tower until the prefill ends.

    Args:
        model: A model from `build_meta_model`.
        grids: The grids of the image's blocks of tokens.
        length: Number of tokens of the prompt before pruning.
        left: Number of tokens of the prompt after pruning.
    """
    config = model.config
    vision, text = config.vision_config, config.text_config
    tokens, largest = sum(prod(grid) for grid in grids), max(prod(grid) for grid in grids)
    if hasattr(model.model, "visual"):
        patches = vision.spatial_merge_size**2 * tokens
        held = len(getattr(vision, "deepstack_visual_indexes", ())) * tokens * text.hidden_size
    else:
        crop = (vision.image_size // vision.patch_size) ** 2 + (vision.model_type == "clip_vision_model")
        patches = len(grids) * crop
        held = (vision.num_hidden_layers + 1) * patches * vision.hidden_size
    gated = vision.model_type.startswith("qwen2_5_vl")
    tower = patches * (3 * vision.hidden_size + (3 if gated else 2) * vision.intermediate_size)
    prompt = (tokens + length) * text.hidden_size
    selection = 0
    if left < length:
        encoder = text_encoder_config(config)
        aligned = 0 if encoder is None else tokens * getattr(encoder, "projection_dim", encoder.hidden_size)
        scratch = max(aligned, largest * (text.hidden_size + largest))
        selection = prompt + tokens * text.hidden_size + aligned + scratch
    language = prompt + 3 * left * (text.hidden_size + text.intermediate_size)
    return held + max(tower, selection, language)


def available_memory(device: torch.device) -> int:
    """Return the free memory of a GPU, or of the machine within the limits of its container, in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (info := Path("/proc/meminfo")).exists():
        free = int(next(line for line in info.read_text().splitlines() if "MemAvailable" in line).split()[1]) * 1024
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def check_fits(config: Any, grids: list[Grid], dtype: torch.dtype, device: torch.device, name: str) -> None:
    """Check that a model fits into memory, before anything is allocated.

    Args:
        config: The configuration of the model.
        grids: The grids of one image's blocks of tokens.
        dtype: The type of the weights.
        device: The device.
        name: The name of the model, for the message.

    Raises:
        ValueError: If the weights and one prefill do not fit.
    """
    model, free = build_meta_model(config), available_memory(device)
    need = compute_footprint(model, weight_bytes(model, dtype), grids, None, 64, dtype)
    if need.total > free:
        layers = config.text_config.num_hidden_layers
        raise ValueError(
            f"{name} does not fit: in {str(dtype).removeprefix('torch.')} its weights take "
            f"{format_bytes(need.weights)} and a prefill {format_bytes(need.cache + need.activations)} more, and "
            f"{device.type} has {format_bytes(free)} left. It has {layers} layers: shorten it with --layers, or take a "
            "smaller dtype"
        )


def parse_dtype(name: torch.dtype | str) -> torch.dtype:
    """Parse the name of a type: bfloat16 → torch.bfloat16.

    Raises:
        ValueError: If the name is not float32, bfloat16 or float16.
    """
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if isinstance(name, torch.dtype):
        return name
    checks.known("dtype", name, dtypes)
    return dtypes[name]


def format_bytes(size: float) -> str:
    """Format a number of bytes: 1.5 GiB."""
    for unit in ("GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:,.1f} {unit}"
    return f"{size:,.0f} B"
