"""Multiply-adds of one prefill, computed from a configuration alone.

The model is built on the meta device, and nothing is run. A multiply-add is one product and its sum, which torch's
`FlopCounterMode` counts as two FLOPs. Attention is counted in full, as it is computed, not halved for causality.
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
    """Multiply-adds of a prefill by part.

    Attributes:
        tower: The vision tower.
        projector: From the tower's output to the language model's tokens; on Qwen, the mergers.
        guide: The text encoder and its projection of the visual tokens; 0 if the guide is a table of embeddings.
        pruner: Relevance, smoothing and token similarity. The greedy selection's updates depend on the image and are
            not counted.
        linear: The linear layers of the language model.
        attention: The language model's products of queries, keys and values.
        head: The logits of the last token.
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
        """The sum of all parts."""
        return sum(getattr(self, part.name) for part in fields(self))


def count_prefill(config: Any, grids: list[Grid], keep: int | None, text: int, words: int = 20) -> Cost:
    """Count one prefill of a prompt with one image.

    Args:
        config: The configuration of a model.
        grids: The grids of the image's blocks of tokens, as in `VisualTokens`.
        keep: Number of visual tokens that stay; None for all.
        text: Number of text tokens of the prompt.
        words: Number of words of the question, which the guide encodes.

    Returns:
        The multiply-adds by part.
    """
    return count_model_prefill(build_meta_model(config), grids, keep, text, words)


def count_model_prefill(model: Any, grids: list[Grid], keep: int | None, text: int, words: int = 20) -> Cost:
    """Count one prefill of a model that is built already; see `count_prefill`."""
    config = model.config
    tokens = sum(prod(grid) for grid in grids)
    tower, projector = count_vision(model, grids)
    linear, attention, head = count_language_model(model, text + (tokens if keep is None else min(keep, tokens)))
    guide = pruner = 0
    if keep is not None and keep < tokens:
        width = config.text_config.hidden_size
        channels = width
        encoder = text_encoder_config(config)
        if encoder is not None:
            guide = count_text_encoder(encoder, words)
            channels = encoder.hidden_size
            if encoder.model_type == "clip_text_model":
                channels = encoder.projection_dim
                guide += tokens * config.vision_config.hidden_size * channels
        pruner = count_pruner(grids, words, channels, width)
    return Cost(tower, projector, guide, pruner, linear, attention, head)


def count_linear_weights(module: nn.Module) -> int:
    """Count the multiply-adds of one token in all linear layers of a module."""
    return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))


def count_language_model(model: Any, tokens: int) -> tuple[int, int, int]:
    """Count the language model on a sequence of `tokens` tokens.

    Returns:
        The multiply-adds of the linear layers, of attention, and of the head for one token.
    """
    text, settings = model.model.language_model, model.config.text_config
    width = settings.num_attention_heads * (getattr(settings, "head_dim", None) or _head_dim(settings))
    attention = settings.num_hidden_layers * 2 * width * tokens**2
    return count_linear_weights(text) * tokens, attention, model.lm_head.weight.numel()


def count_vision(model: Any, grids: list[Grid]) -> tuple[int, int]:
    """Count the vision tower and the projector for blocks of visual tokens with these grids, before pruning."""
    return (
        _count_qwen_vision(model, grids) if hasattr(model.model, "visual") else _count_llava_vision(model, len(grids))
    )


def _count_llava_vision(model: Any, crops: int) -> tuple[int, int]:
    """Count LLaVA's tower, which encodes every crop at one resolution. CLIP adds a CLS token."""
    tower, settings = model.model.vision_tower, model.config.vision_config
    patches = (settings.image_size // settings.patch_size) ** 2
    tokens = patches + (settings.model_type == "clip_vision_model")
    embed = patches * tower.embeddings.patch_embedding.weight.numel()
    attention = settings.num_hidden_layers * 2 * settings.hidden_size * tokens**2
    projector = count_linear_weights(model.model.multi_modal_projector) * patches
    return crops * (embed + count_linear_weights(tower.encoder) * tokens + attention), crops * projector


def _count_qwen_vision(model: Any, grids: list[Grid]) -> tuple[int, int]:
    """Count Qwen's tower, which merges several patches into a token. Most layers of Qwen2.5 attend within windows."""
    tower, settings = model.model.visual, model.config.vision_config
    merge = settings.spatial_merge_size
    patches = sum(merge**2 * prod(grid) for grid in grids)
    embed = patches * tower.patch_embed.proj.weight.numel()
    full_pairs = sum((merge**2 * prod(grid)) ** 2 for grid in grids)
    width = settings.hidden_size
    if hasattr(settings, "fullatt_block_indexes"):
        full_layers = len(settings.fullatt_block_indexes)
        side = settings.window_size // merge // settings.patch_size
        window_pairs = sum((merge**2 * size) ** 2 for grid in grids for size in _window_sizes(grid, side))
        attention = 2 * width * (full_layers * full_pairs + (settings.depth - full_layers) * window_pairs)
    else:
        attention = 2 * width * settings.depth * full_pairs
    mergers = [tower.merger, *getattr(tower, "deepstack_merger_list", [])]
    projector = sum(count_linear_weights(merger) for merger in mergers) * (patches // merge**2)
    return embed + count_linear_weights(tower.blocks) * patches + attention, projector


def _window_sizes(grid: Grid, side: int) -> list[int]:
    """Compute the number of tokens in each window of side×side tokens. Windows at the borders are smaller."""
    rows, columns = ([min(side, length - start) for start in range(0, length, side)] for length in grid)
    return [row * column for row in rows for column in columns]


def count_text_encoder(config: Any, words: int) -> int:
    """Count a text encoder on a question of `words` words, split into segments.

    SigLIP's segments are padded to the full length. CLIP encodes one segment without padding, several as if each had
    the full length. CLIP projects all tokens and the pooled one. SigLIP has a head for the pooled token only.
    """
    length, clip = config.max_position_embeddings, config.model_type == "clip_text_model"
    segments = max(1, ceil(words / (length - 1 - clip)))
    if clip and segments == 1:
        length = words + 2  # With BOS and EOS.
    layer = 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
    encoder = config.num_hidden_layers * (length * layer + 2 * config.hidden_size * length**2)
    outputs = (length + 1) * config.projection_dim if clip else config.projection_size
    return segments * (encoder + outputs * config.hidden_size)


def count_pruner(grids: list[Grid], words: int, channels: int, width: int, smoothing: int = 3) -> int:
    """Count EADP's own work: cosines with words and pooled text, two smoothing passes, half of each similarity matrix.

    Args:
        grids: The grids of the blocks of tokens.
        words: Number of words of the question.
        channels: Width of the space that text and visual tokens share.
        width: Width of the visual tokens.
        smoothing: Length of the smoothing kernel.
    """
    tokens = sum(prod(grid) for grid in grids)
    similarity = sum(_count_gram_entries(prod(grid)) * width for grid in grids)
    return (words + 1) * tokens * channels + 2 * smoothing * tokens + similarity


def _count_gram_entries(n: int) -> int:
    """Count the entries of an n×n Gram matrix that `core.token_similarity` computes: panels from the diagonal on."""
    step = max(128, ceil(n / 8))
    return sum(min(step, n - start) * (n - start) for start in range(0, n, step))


def _head_dim(settings: Any) -> int:
    return settings.hidden_size // settings.num_attention_heads
