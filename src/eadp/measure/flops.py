"""Multiply-adds of one prefill, from a configuration alone: the model is built on the meta device, nothing is computed.

A multiply-add is one product and its sum; `FlopCounterMode` of torch calls that two FLOPs. Attention is counted in
full, as it is computed, not halved for causality.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil, prod
from typing import Any

from torch import nn

from eadp.architectures.configs import build_meta_model, text_encoder_config
from eadp.core import Grid


@dataclass(frozen=True)
class Cost:
    """Multiply-adds by part.

    tower:     the vision encoder. projector: from its output to the language model's tokens (Qwen: the mergers).
    guide:     the text encoder, and its projection of the visual tokens; 0 where the guide is a table of embeddings.
    pruner:    relevance, smoothing and the similarity of tokens. The greedy's corrections depend on the image: timed,
               not counted.
    linear:    the language model's linear layers. attention: its products of queries, keys and values.
    head:      the logits of the last token.
    """

    tower: int
    projector: int
    guide: int
    pruner: int
    linear: int
    attention: int
    head: int

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


def linear_weights(module: nn.Module) -> int:
    """Multiply-adds of one token in all the linear layers of a module."""
    return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))


def language_model(model: Any, tokens: int) -> tuple[int, int, int]:
    """Linear layers and attention of so many tokens, and the head for one."""
    text, settings = model.model.language_model, model.config.text_config
    width = settings.num_attention_heads * (getattr(settings, "head_dim", None) or _head_dim(settings))
    attention = settings.num_hidden_layers * 2 * width * tokens**2
    return linear_weights(text) * tokens, attention, model.lm_head.weight.numel()


def vision(model: Any, grids: list[Grid]) -> tuple[int, int]:
    """Tower and projector for the blocks of visual tokens with these grids, before anything is cut off."""
    return _qwen(model, grids) if hasattr(model.model, "visual") else _llava(model, len(grids))


def _llava(model: Any, crops: int) -> tuple[int, int]:
    """Every crop passes the tower at its one resolution; CLIP adds a CLS token."""
    tower, settings = model.model.vision_tower, model.config.vision_config
    cells = (settings.image_size // settings.patch_size) ** 2
    tokens = cells + (settings.model_type == "clip_vision_model")
    embed = cells * tower.embeddings.patch_embedding.weight.numel()
    attention = settings.num_hidden_layers * 2 * settings.hidden_size * tokens**2
    projector = linear_weights(model.model.multi_modal_projector) * cells
    return crops * (embed + linear_weights(tower.encoder) * tokens + attention), crops * projector


def _qwen(model: Any, grids: list[Grid]) -> tuple[int, int]:
    """Patches lie twice as fine as tokens; Qwen2.5's blocks attend within windows but for a few."""
    tower, settings = model.model.visual, model.config.vision_config
    merge = settings.spatial_merge_size
    patches = sum(merge**2 * prod(grid) for grid in grids)
    embed = patches * tower.patch_embed.proj.weight.numel()
    whole = sum((merge**2 * prod(grid)) ** 2 for grid in grids)
    width = settings.hidden_size
    if hasattr(settings, "fullatt_block_indexes"):
        everywhere = len(settings.fullatt_block_indexes)
        side = settings.window_size // merge // settings.patch_size
        windows = sum((merge**2 * size) ** 2 for grid in grids for size in _windows(grid, side))
        attention = 2 * width * (everywhere * whole + (settings.depth - everywhere) * windows)
    else:
        attention = 2 * width * settings.depth * whole
    mergers = [tower.merger, *getattr(tower, "deepstack_merger_list", [])]
    projector = sum(linear_weights(merger) for merger in mergers) * (patches // merge**2)
    return embed + linear_weights(tower.blocks) * patches + attention, projector


def _windows(grid: Grid, side: int) -> list[int]:
    """Tokens of each window of side×side tokens on a grid, the ones at the borders cut."""
    rows, columns = ([min(side, length - start) for start in range(0, length, side)] for length in grid)
    return [row * column for row in rows for column in columns]


def text_encoder(text: Any, words: int) -> int:
    """A text encoder on a question of so many words, in segments that are always padded to its full length.

    CLIP projects all its slots and the pooled one; SigLIP has a head for the pooled one alone.
    """
    slots, clip = text.max_position_embeddings, text.model_type == "clip_text_model"
    segments = max(1, ceil(words / (slots - 1 - clip)))
    layer = 4 * text.hidden_size**2 + 2 * text.hidden_size * text.intermediate_size
    encoder = text.num_hidden_layers * (slots * layer + 2 * text.hidden_size * slots**2)
    last = (slots + 1) * text.projection_dim if clip else text.projection_size
    return segments * (encoder + last * text.hidden_size)


def pruner(grids: list[Grid], words: int, channels: int, width: int, smoothing: int = 3) -> int:
    """EADP's own: cosines with words and pooled text, the Gaussian's two passes, half of each block's similarity."""
    tokens = sum(prod(grid) for grid in grids)
    similarity = sum(_half_gram(prod(grid)) * width for grid in grids)
    return (words + 1) * tokens * channels + 2 * smoothing * tokens + similarity


def _half_gram(n: int) -> int:
    """Entries of an n×n Gram matrix that `core.token_similarity` multiplies out: panels right of the diagonal."""
    step = max(128, ceil(n / 8))
    return sum(min(step, n - start) * (n - start) for start in range(0, n, step))


def prefill(config: Any, grids: list[Grid], keep: int | None, text: int, words: int = 20) -> Cost:
    """One prompt of `text` tokens and one image, with all its tokens (keep=None) or `keep` of them.

    grids: as in `VisualTokens`. words: of the question, which the guide reads.
    """
    return count(build_meta_model(config), grids, keep, text, words)


def count(model: Any, grids: list[Grid], keep: int | None, text: int, words: int = 20) -> Cost:
    """`prefill` of a model that is built already."""
    config = model.config
    tokens = sum(prod(grid) for grid in grids)
    tower, projector = vision(model, grids)
    linear, attention, head = language_model(model, text + (tokens if keep is None else min(keep, tokens)))
    guide = prune = 0
    if keep is not None and keep < tokens:
        width = config.text_config.hidden_size
        channels = width
        side = text_encoder_config(config)
        if side is not None:
            guide = text_encoder(side, words)
            channels = side.hidden_size
            if side.model_type == "clip_text_model":
                channels = side.projection_dim
                guide += tokens * config.vision_config.hidden_size * channels
        prune = pruner(grids, words, channels, width)
    return Cost(tower, projector, guide, prune, linear, attention, head)


def _head_dim(settings: Any) -> int:
    return settings.hidden_size // settings.num_attention_heads
