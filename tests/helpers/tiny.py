"""Tiny random models of every family, and prompts for them: offline, deterministic, and built in code.

    model = tiny.model("llava_next")
    inputs = tiny.inputs("llava_next", [[(30, 50)], [(56, 20), (28, 28)]])     # two prompts, the sizes of their images
    tokenizer, processor = tiny.tokenizer(), tiny.processor("llava")

Sizes are (height, width) of an image, or (frames, height, width) of a clip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from helpers.tiny_processors import IDS, PINPOINTS, VOCABULARY, processor, tokenizer

__all__ = ["FAMILIES", "IDS", "VOCABULARY", "build", "inputs", "model", "processor", "tokenizer"]

Size = tuple[int, ...]
Segment = tuple[list[int], dict[str, Any]]
"""The placeholder ids of an image or clip, and its other inputs of the model."""

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "pad_token_id": IDS["<pad>"],
    "bos_token_id": IDS["<s>"],
    "eos_token_id": IDS["</s>"],
}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
CLIP = dict(TOWER, model_type="clip_vision_model", image_size=28, patch_size=7, projection_dim=16)
SIGLIP = dict(TOWER, model_type="siglip_vision_model", patch_size=4, vision_use_head=False)
EFFICIENTNET = {
    "image_size": 16,
    "stem_channels": 4,
    "out_channels": [4, 6],
    "repeats": [1, 2],
    "kernel_sizes": [3, 5],
    "strides": [1, 2],
    "expand_ratios": [1, 2],
    "hidden_size": 32,
    "num_classes": 20,
}
"""A convolutional tower with 4×4 cells and few classes, without its model type."""
LLAMA, QWEN2 = dict(TEXT, model_type="llama"), dict(TEXT, model_type="qwen2")
IMAGE, VIDEO = {"image_token_index": IDS["<image>"]}, {"video_token_index": IDS["<video>"]}
MROPE = dict(TEXT, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]})
QWEN_VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 64,
}
QWEN_TOKENS = {
    f"{name}_token_id": IDS[f"<|{token}|>"]
    for name, token in {
        "image": "image_pad",
        "video": "video_pad",
        "vision_start": "vision_start",
        "vision_end": "vision_end",
    }.items()
}
IDEFICS = {
    "image_token_id": IDS["<image>"],
    "vision_config": dict(TOWER, image_size=24, patch_size=4),
    "text_config": LLAMA,
    "scale_factor": 2,
}

CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llava": (hf.LlavaConfig, dict(vision_config=CLIP, text_config=LLAMA, **IMAGE)),
    "llava_next": (
        hf.LlavaNextConfig,
        dict(vision_config=CLIP, text_config=LLAMA, image_grid_pinpoints=PINPOINTS, **IMAGE),
    ),
    "llava_next_video": (
        hf.LlavaNextVideoConfig,
        dict(vision_config=CLIP, text_config=LLAMA, image_grid_pinpoints=PINPOINTS, **IMAGE, **VIDEO),
    ),
    "llava_onevision": (
        hf.LlavaOnevisionConfig,
        dict(
            vision_config=dict(SIGLIP, image_size=28),
            text_config=QWEN2,
            image_grid_pinpoints=[*PINPOINTS, [112, 112]],
            **IMAGE,
            **VIDEO,
        ),
    ),
    "qwen2_5_vl": (
        hf.Qwen2_5_VLConfig,
        dict(
            vision_config=dict(QWEN_VISION, window_size=16, fullatt_block_indexes=[1]),
            text_config=MROPE,
            **QWEN_TOKENS,
        ),
    ),
    "qwen3_vl": (
        hf.Qwen3VLConfig,
        dict(
            vision_config=dict(QWEN_VISION, deepstack_visual_indexes=[0, 1], num_position_embeddings=16),
            text_config=MROPE,
            **QWEN_TOKENS,
        ),
    ),
    "internvl": (
        hf.InternVLConfig,
        {
            "vision_config": dict(TOWER, model_type="internvl_vision", image_size=[24, 24], patch_size=[4, 4]),
            "text_config": QWEN2,
            "image_token_id": IDS["<IMG_CONTEXT>"],
        },
    ),
    "idefics3": (hf.Idefics3Config, IDEFICS),
    "smolvlm": (hf.SmolVLMConfig, IDEFICS),
    "gemma3": (
        hf.Gemma3Config,
        {
            "vision_config": dict(SIGLIP, image_size=32),
            "text_config": dict(
                TEXT, sliding_window=9, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
            ),
            "mm_tokens_per_image": 16,
            "image_token_index": IDS["<image_soft_token>"],
            "boi_token_index": IDS["<start_of_image>"],
            "eoi_token_index": IDS["<end_of_image>"],
        },
    ),
    "paligemma": (
        hf.PaliGemmaConfig,
        dict(
            vision_config=dict(SIGLIP, image_size=16, projection_dim=64),
            text_config=dict(TEXT, model_type="gemma"),
            projection_dim=64,
            hidden_size=64,
            **IMAGE,
        ),
    ),
}
FAMILIES = tuple(CONFIGS)


@cache
def model(family: str, seed: int = 0, attention: str = "sdpa") -> hf.PreTrainedModel:
    """Return the family's model; the same object every time."""
    kind, settings = CONFIGS[family]
    return build(kind(**settings), seed, attention)


def build(config: hf.PreTrainedConfig, seed: int = 0, attention: str = "sdpa") -> hf.PreTrainedModel:
    """Build a model whose weights are large enough that every token of the prompt affects the answer."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built = hf.AutoModelForImageTextToText.from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if weight.ndim > 1 or "newline" in name or "class_embedding" in name:
                scale = 1.0 if "embed_tokens" in name else 1.5 * weight.shape[-1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    built.generation_config.eos_token_id = None
    built.generation_config.pad_token_id = IDS["<pad>"]
    return built.requires_grad_(False)


def inputs(
    family: str, prompts: Sequence[Sequence[Size]], padding: str = "left", first: int = 0, words: int = 9
) -> dict[str, Tensor]:
    """Build the inputs that a processor would return for prompts of text, images and text.

    Prompt n does not depend on the other prompts: `inputs(family, [sizes], first=n)` is that prompt alone.
    """
    base = model(family).base_model
    rows, images = [], []
    for number, sizes in enumerate(prompts, start=first):
        generator = torch.Generator().manual_seed(number)

        def text(length: int, generator: torch.Generator = generator) -> list[int]:
            return torch.randint(32, 200, (length,), generator=generator).tolist()

        row = [IDS["<s>"], *text(3)]
        for size in sizes:
            ids, pixels = _segment(family)(base, size, generator)
            row += [*ids, *text(2)]
            images.append(pixels)
        rows.append(row + text(words + 2 * number))
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), IDS["<pad>"])
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        here = slice(width - len(row), width) if padding == "left" else slice(len(row))
        ids[index, here] = torch.tensor(row)
        mask[index, here] = 1
    return dict(input_ids=ids, attention_mask=mask, **_extras(family, ids), **_collated(family, images, prompts))


def _extras(family: str, ids: Tensor) -> dict[str, Tensor]:
    if family in ("qwen2_5_vl", "qwen3_vl"):
        image, video = (ids == IDS[f"<|{kind}_pad|>"] for kind in ("image", "video"))
        return {"mm_token_type_ids": image.int() + 2 * video.int()}
    if family == "gemma3":
        return {"token_type_ids": (ids == IDS["<image_soft_token>"]).int()}
    if family == "paligemma":
        return {"token_type_ids": torch.zeros_like(ids)}
    return {}


def _collated(family: str, images: list[dict[str, Any]], prompts: Sequence[Sequence[Size]]) -> dict[str, Tensor]:
    """Collate into one tensor per name. If images have different numbers of crops, pad with zeros."""
    together: dict[str, Tensor] = {}
    for name in {name: None for image in images for name in image}:
        parts = [image[name] for image in images if name in image]
        if family in ("idefics3", "smolvlm"):
            none = parts[0][:0]
            parts = [torch.cat([none, *(parts.pop(0) for _ in sizes)]) for sizes in prompts]
        if family in ("qwen2_5_vl", "qwen3_vl", "internvl", "gemma3", "paligemma", "llava"):
            together[name] = torch.cat(parts)
        elif parts[0].ndim > 1:
            crops = max(len(part) for part in parts)
            together[name] = torch.stack([torch.cat([p, p.new_zeros(crops - len(p), *p.shape[1:])]) for p in parts])
        else:
            together[name] = torch.stack(parts)
    if family == "llava_onevision" and "image_sizes" in together:
        together["batch_num_images"] = torch.tensor([sum(len(size) == 2 for size in sizes) for sizes in prompts])
        together["batch_num_images"] = together["batch_num_images"][together["batch_num_images"] > 0]
    return together


def _segment(family: str) -> Callable[[Any, Size, torch.Generator], Segment]:
    if family.startswith("llava_"):
        return _anyres
    return {
        "qwen2_5_vl": _qwen,
        "qwen3_vl": _qwen,
        "internvl": _internvl,
        "idefics3": _idefics,
        "smolvlm": _idefics,
    }.get(family, _fixed)


def _fixed(base: Any, size: Size, generator: torch.Generator) -> Segment:
    """LLaVA, Gemma3 and PaliGemma: every image has the same size."""
    vision = base.config.vision_config
    tokens = getattr(base.config, "mm_tokens_per_image", (vision.image_size // vision.patch_size) ** 2)
    ids = [base.config.image_token_id] * tokens
    if base.config.model_type == "gemma3":
        ids = [IDS["<start_of_image>"], *ids, IDS["<end_of_image>"]]
    return ids, {"pixel_values": torch.randn(1, 3, vision.image_size, vision.image_size, generator=generator)}


def _anyres(base: Any, size: Size, generator: torch.Generator) -> Segment:
    side = base.config.vision_config.image_size
    if len(size) == 3:
        pixels = torch.randn(size[0], 3, side, side, generator=generator)
        with torch.no_grad():
            (clip,) = base.get_video_features(pixels[None], return_dict=True).pooler_output
        tokens = clip.shape[:-1].numel()  # frames·tokens×d, and frames×tokens×d in older releases of transformers
        return [IDS["<video>"]] * tokens, {"pixel_values_videos": pixels}
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    crops = image_size_to_num_patches(size, base.config.image_grid_pinpoints, side)
    pixels = torch.randn(crops, 3, side, side, generator=generator)
    sizes = torch.tensor(size)
    with torch.no_grad():
        tokens = len(base.get_image_features(pixels[None], sizes[None], return_dict=True).pooler_output[0])
    return [IDS["<image>"]] * tokens, {"pixel_values": pixels, "image_sizes": sizes}


def _qwen(base: Any, size: Size, generator: torch.Generator) -> Segment:
    frames, height, width = (1, *size) if len(size) == 2 else size
    vision = base.config.vision_config
    grid = [frames, height // vision.patch_size, width // vision.patch_size]
    depth = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.randn(grid[0] * grid[1] * grid[2], depth, generator=generator)
    start, end = IDS["<|vision_start|>"], IDS["<|vision_end|>"]
    kind = "image" if len(size) == 2 else "video"
    tokens = [IDS[f"<|{kind}_pad|>"]] * (grid[1] * grid[2] // vision.spatial_merge_size**2)
    if kind == "image":
        return [start, *tokens, end], {"pixel_values": pixels, "image_grid_thw": torch.tensor([grid])}
    if base.config.model_type == "qwen3_vl":
        ids = [each for frame in range(frames) for each in (IDS["0"] + frame, start, *tokens, end)]
    else:
        ids = [start, *tokens * frames, end]
    return ids, {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([grid])}


def _internvl(base: Any, size: Size, generator: torch.Generator) -> Segment:
    """As many tiles as cover the image, and a thumbnail if there are several."""
    side = base.config.vision_config.image_size[0]
    tiles = max(1, size[0] // side) * max(1, size[1] // side)
    tiles += tiles > 1
    tokens = int((side // base.config.vision_config.patch_size[0]) ** 2 * base.config.downsample_ratio**2)
    ids = [IDS["<img>"], *[IDS["<IMG_CONTEXT>"]] * tokens * tiles, IDS["</img>"]]
    return ids, {"pixel_values": torch.randn(tiles, 3, side, side, generator=generator)}


def _idefics(base: Any, size: Size, generator: torch.Generator) -> Segment:
    """Crops row by row, each with its markers, and the whole image last."""
    side, tokens = base.config.vision_config.image_size, [IDS["<image>"]] * base.image_seq_len
    rows, columns = max(1, size[0] // side), max(1, size[1] // side)
    fake, line = IDS["<fake_token_around_image>"], IDS["Ċ"]
    ids: list[int] = []
    if rows * columns > 1:
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                ids += [fake, IDS[f"<row_{row}_col_{column}>"], *tokens]
            ids.append(line)
        ids.append(line)
    ids += [fake, IDS["<global-img>"], *tokens, fake]
    crops = rows * columns + 1 if rows * columns > 1 else 1
    return ids, {"pixel_values": torch.randn(crops, 3, side, side, generator=generator)}
