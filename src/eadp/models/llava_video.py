"""LLaVA-Video on LLaVA-OneVision's classes: frames pooled by average to 13×13, a newline after each row.

LLaVA-Video-7B-Qwen2 has OneVision's architecture, so its weights load into `LlavaOnevisionForConditionalGeneration`
under other names (those of the stock class on the right):

    model.vision_tower.vision_tower.vision_model.*   model.vision_tower.*
    model.mm_projector.0.*, model.mm_projector.2.*   model.multi_modal_projector.linear_1.*, linear_2.*
    model.image_newline                              model.image_newline
    model.embed_tokens.*, model.layers.*, model.norm.*   model.language_model.*
    lm_head.*                                        lm_head.*

with the configuration and the processor of `llava-hf/llava-onevision-qwen2-7b-ov-hf`. Then

    convert(model, processor)
    with eadp.attach(model, processor, keep=64): …
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eadp.compat import REPLACE_VIDEO_TOKEN
from eadp.models.family import square
from eadp.models.overrides import Overrides

STRIDE = 2


def convert(model: nn.Module, processor: Any = None) -> Overrides:
    """Give a OneVision model, and its processor, LLaVA-Video's way with frames, until `.undo()` or the end of `with`.

    A frame of 27×27 cells becomes 13×13 tokens and 13 newlines, and a clip of F frames F·13·14 placeholders.
    """
    base: Any = getattr(model, "model", model)
    if getattr(getattr(base, "config", None), "model_type", None) != "llava_onevision":
        raise ValueError(f"LLaVA-Video is a LLaVA-OneVision model, got {type(model).__name__}")
    encode = base.get_video_features

    def apply_pooling(frames: Tensor) -> Tensor:
        """F×cells×d → F×pooled×d."""
        cells = frames.unflatten(1, square(frames.shape[1], "a frame")).permute(0, 3, 1, 2)
        return F.avg_pool2d(cells, STRIDE).flatten(2).transpose(1, 2)

    @wraps(encode)
    def get_video_features(*args: Any, **kwargs: Any) -> Any:
        output = encode(*args, **kwargs)
        # One newline at the end, as OneVision has it, makes room for one after each row.
        clips = output.pooler_output[:, :-1]
        side = _side(base.config.vision_config)
        rows = clips.unflatten(1, (-1, side))
        newline = base.image_newline.to(rows).expand(*rows.shape[:2], 1, -1)
        output.pooler_output = torch.cat([rows, newline], dim=2).flatten(1, 2)
        return output

    def replace_video_token(video_inputs: Any, video_idx: int, **kwargs: Any) -> str:
        side = _side(base.config.vision_config)
        return processor.video_token * (len(video_inputs["pixel_values_videos"][video_idx]) * side * (side + 1))

    converted = Overrides()
    converted.override(base, "apply_pooling", apply_pooling)
    converted.override(base, "get_video_features", get_video_features)
    if processor is not None:
        converted.override(processor, REPLACE_VIDEO_TOKEN, replace_video_token)
    return converted


def _side(vision: Any) -> int:
    return vision.image_size // vision.patch_size // STRIDE
