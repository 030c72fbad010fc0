"""Bytes that a model and one prefill take, from the configuration alone, and what the machine has.

Weights and the KV cache are exact. Activations are those of the widest moment, with fused attention: a linear layer's
inputs and outputs, what the vision tower gave and the model still holds. `tests/test_plan.py` sets them beside the
tensors that torch really keeps.
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
    """Bytes. weights: of the model and of its guide's text encoder; cache: keys and values; activations: at most."""

    weights: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations


def footprint(
    model: Any, weights: int, grids: list[Grid], keep: int | None, text: int, dtype: torch.dtype, batch: int = 1
) -> Footprint:
    """`batch` prompts of one image and `text` tokens each (answers included). model: as `build_meta_model` gives it;
    weights: its `weight_bytes`."""
    tokens = sum(prod(grid) for grid in grids)
    left = tokens if keep is None else min(keep, tokens)
    seen = activations(model, grids, tokens + text, left + text)
    cache = (left + text) * cache_bytes(model.config, dtype)
    return Footprint(weights, batch * cache, batch * seen * dtype.itemsize)


def weight_bytes(model: Any, dtype: torch.dtype) -> int:
    """Of the model and of the text encoder that guides it."""
    numbers = sum(weight.numel() for weight in model.parameters())
    side = text_encoder_config(model.config)
    if side is not None:
        with torch.device("meta"):
            numbers += sum(weight.numel() for weight in build_text_encoder(side).parameters())
        if side.model_type == "clip_text_model":
            numbers += side.projection_dim * (side.hidden_size + model.config.vision_config.hidden_size)
    return numbers * dtype.itemsize


def cache_bytes(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers."""
    text = config.text_config
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * text.num_key_value_heads * head * dtype.itemsize


def activations(model: Any, grids: list[Grid], length: int, left: int) -> int:
    """Numbers alive at the widest moment of one prompt's prefill. length: of the prompt; left: after pruning.

    In the tower: three rows of its hidden width and two of its inner one for each patch, or three where its MLP is
    gated. While tokens are chosen: they in the space of the text, and again at length one, or the largest block's
    similarity. In the language model: the prompt's embeddings and the image's features, and for each token left three
    rows of the hidden width and three of the inner one. The LLaVA families hold every layer's output of the tower until
    the prefill ends.
    """
    config = model.config
    vision, text = config.vision_config, config.text_config
    tokens, largest = sum(prod(grid) for grid in grids), max(prod(grid) for grid in grids)
    if hasattr(model.model, "visual"):
        patches = vision.spatial_merge_size**2 * tokens
        held = len(getattr(vision, "deepstack_visual_indexes", ())) * tokens * text.hidden_size
    else:
        cells = (vision.image_size // vision.patch_size) ** 2 + (vision.model_type == "clip_vision_model")
        patches = len(grids) * cells
        held = (vision.num_hidden_layers + 1) * patches * vision.hidden_size
    gated = vision.model_type.startswith("qwen2_5_vl")
    tower = patches * (3 * vision.hidden_size + (3 if gated else 2) * vision.intermediate_size)
    prompt = (tokens + length) * text.hidden_size
    chosen = 0
    if left < length:
        side = text_encoder_config(config)
        aligned = 0 if side is None else tokens * getattr(side, "projection_dim", side.hidden_size)
        again = max(aligned, largest * (text.hidden_size + largest))
        chosen = prompt + tokens * text.hidden_size + aligned + again
    language = prompt + 3 * left * (text.hidden_size + text.intermediate_size)
    return held + max(tower, chosen, language)


def available_memory(device: torch.device) -> int:
    """Bytes that can be had now: of the GPU, or of the machine within the limits of its container."""
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
    """Refuse a model that does not fit, before anything of it is allocated."""
    model, free = build_meta_model(config), available_memory(device)
    need = footprint(model, weight_bytes(model, dtype), grids, None, 64, dtype)
    if need.total > free:
        layers = config.text_config.num_hidden_layers
        raise ValueError(
            f"{name} does not fit: in {str(dtype).removeprefix('torch.')} its weights take "
            f"{format_bytes(need.weights)} and a prefill {format_bytes(need.cache + need.activations)} more, and "
            f"{device.type} has {format_bytes(free)} left. Shorten it from its {layers} layers with "
            "--layers, or take a smaller dtype"
        )


def parse_dtype(name: torch.dtype | str) -> torch.dtype:
    """bfloat16 → torch.bfloat16."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if isinstance(name, torch.dtype):
        return name
    checks.known("dtype", name, dtypes)
    return dtypes[name]


def format_bytes(size: float) -> str:
    """1.5 GiB."""
    for unit in ("GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:,.1f} {unit}"
    return f"{size:,.0f} B"
