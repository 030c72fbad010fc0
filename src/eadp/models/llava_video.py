"""LLaVA-Video on LLaVA-OneVision's classes: frames are average-pooled to 13×13, with a newline after each row.

LLaVA-Video-7B-Qwen2 has OneVision's architecture, so its weights load into `LlavaOnevisionForConditionalGeneration`
under other names (on the right, the names of the transformers class):

    model.vision_tower.vision_tower.vision_model.*   model.vision_tower.*
    model.mm_projector.0.*, model.mm_projector.2.*   model.multi_modal_projector.linear_1.*, linear_2.*
    model.image_newline                              model.image_newline
    model.embed_tokens.*, model.layers.*, model.norm.*   model.language_model.*
    lm_head.*                                        lm_head.*

Take the configuration and the processor of `llava-hf/llava-onevision-qwen2-7b-ov-hf`. Then:

    convert(model, processor)
    with eadp.attach(model, processor, keep=64): …
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from eadp.compat import REPLACE_VIDEO_TOKEN
from eadp.models.layout import Pooling, pool_cells
from eadp.models.overrides import Overrides

STRIDE = 2


def convert(model: nn.Module, processor: Any = None) -> Overrides:
    """Make a OneVision model and its processor treat frames as LLaVA-Video does.

    A frame of 27×27 cells becomes 13×13 tokens and 13 newlines, so a clip of F frames has F·13·14 placeholders.

    Args:
        model: A LLaVA-OneVision model.
        processor: Its processor. None: only the model is converted.

    Returns:
        The changes, which `.undo()` or the end of a `with` block takes back.

    Raises:
        ValueError: If the model is not a LLaVA-OneVision.
    """
    base: Any = getattr(model, "model", model)
    if getattr(getattr(base, "config", None), "model_type", None) != "llava_onevision":
        raise ValueError(f"LLaVA-Video is a LLaVA-OneVision model, got {type(model).__name__}")
    encode = base.get_video_features

    @wraps(encode)
    def get_video_features(*args: Any, **kwargs: Any) -> Any:
        output = encode(*args, **kwargs)
        # OneVision's one newline at the end is replaced by one after each row.
        side = frame_side(base.config.vision_config)
        output.pooler_output = add_newlines(output.pooler_output[:, :-1], side, base.image_newline)
        return output

    def replace_video_token(video_inputs: Any, video_idx: int, **kwargs: Any) -> str:
        side = frame_side(base.config.vision_config)
        return processor.video_token * (len(video_inputs["pixel_values_videos"][video_idx]) * side * (side + 1))

    converted = Overrides()
    converted.override(base, "apply_pooling", average_pool)
    converted.override(base, "get_video_features", get_video_features)
    if processor is not None:
        converted.override(processor, REPLACE_VIDEO_TOKEN, replace_video_token)
    return converted


def average_pool(frames: Tensor) -> Tensor:
    """Average each 2×2 cells: F×cells×d → F×pooled×d. An odd row or column at the end is dropped."""
    return pool_cells(frames, Pooling("average", STRIDE))


def add_newlines(clips: Tensor, side: int, newline: Tensor) -> Tensor:
    """Add a newline after each row of each frame: B×(frames·side²)×d → B×(frames·side·(side + 1))×d.

    Args:
        clips: The tokens of the clips.
        side: Rows and columns of a frame's tokens.
        newline: d, the newline.
    """
    rows = clips.unflatten(1, (-1, side))
    return torch.cat([rows, newline.to(rows).expand(*rows.shape[:2], 1, -1)], dim=2).flatten(1, 2)


def frame_side(vision: Any) -> int:
    """Rows and columns of a frame's tokens after pooling. vision: the configuration of the vision tower."""
    return vision.image_size // vision.patch_size // STRIDE
