"""The budget that reaches a goal: a latency or a memory.

Two assumptions: the time of a prefill is proportional to its multiply-adds (`flops`), all parts included; and a batch
multiplies the KV cache and the activations, but not the weights (`memory`). `eadp bench` measures how close a machine
comes to that.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch

from eadp.architectures.configs import build_meta_model
from eadp.architectures.memory import UNITS, Footprint, compute_footprint, format_bytes, weight_bytes
from eadp.core import Grid
from eadp.measure.flops import count_model_prefill

MAX_BATCH = 1 << 16


@dataclass(frozen=True)
class Planner:
    """Computes what budgets cost, and which budget reaches a goal, for prompts with one image.

    Attributes:
        config: The configuration of the model.
        grids: The grids of the image's blocks of tokens.
        text: Number of text tokens per prompt: question, template and answer.
        words: Number of words of the question, which the guide encodes.
        dtype: The type of weights, cache and activations.
        batch: Number of prompts at the same time.
    """

    config: Any
    grids: list[Grid]
    text: int = 40
    words: int = 20
    dtype: torch.dtype = torch.bfloat16
    batch: int = 1

    @cached_property
    def model(self) -> Any:
        """The model on the meta device."""
        return build_meta_model(self.config)

    @property
    def tokens(self) -> int:
        """The number of visual tokens of the image."""
        return sum(prod(grid) for grid in self.grids)

    def latency(self, keep: int) -> float:
        """Compute the multiply-adds of a prefill with `keep` visual tokens, as a ratio to the unpruned prefill."""
        return self._multiply_adds(keep) / self._unpruned_multiply_adds

    @cached_property
    def _unpruned_multiply_adds(self) -> int:
        return self._multiply_adds(self.tokens)

    def _multiply_adds(self, keep: int) -> int:
        return count_model_prefill(self.model, self.grids, keep, self.text, self.words).total

    def memory(self, keep: int, batch: int | None = None, text: int | None = None) -> Footprint:
        """Compute the memory of a prefill with `keep` visual tokens.

        Args:
            keep: Number of visual tokens that stay.
            batch: Number of prompts; None for the planner's.
            text: Number of text tokens per prompt; None for the planner's.
        """
        text = self.text if text is None else text
        return compute_footprint(self.model, self._weights, self.grids, keep, text, self.dtype, batch or self.batch)

    @cached_property
    def _weights(self) -> int:
        return weight_bytes(self.model, self.dtype)

    def keep_for_latency(self, ratio: float) -> int:
        """Find the largest number of visual tokens whose latency is at most `ratio`.

        Raises:
            ValueError: If even one token takes longer.
        """
        if ratio >= 1:
            return self.tokens
        keep = _largest(self.tokens, lambda keep: self.latency(keep) <= ratio)
        if not keep:
            raise ValueError(
                f"no budget reaches {ratio:g}x: with one token left a prefill still takes {self.latency(1):.2f}x, most "
                "of it in the vision tower, which encodes the whole image"
            )
        return keep

    def keep_for_memory(self, size: int) -> int:
        """Find the largest number of visual tokens that fits into `size` bytes.

        The unpruned model needs no memory for a selection, so all tokens may fit where fewer do not.

        Raises:
            ValueError: If not even one token fits.
        """
        if self.memory(self.tokens).total <= size:
            return self.tokens
        keep = _largest(self.tokens, lambda keep: self.memory(keep).total <= size)
        if not keep:
            least = self.memory(1)
            raise ValueError(
                f"nothing fits into {format_bytes(size)}: the weights take {format_bytes(least.weights)}, and a "
                f"prefill with one token left {format_bytes(least.cache + least.activations)} more; take a smaller "
                "dtype or batch"
            )
        return keep

    def largest_batch(self, keep: int, size: int) -> int:
        """Find the largest number of prompts that fits into `size` bytes at the same time; 0 if none does."""
        return _largest(MAX_BATCH, lambda batch: self.memory(keep, batch=batch).total <= size)

    def longest_context(self, keep: int, size: int) -> int:
        """Find the largest number of text tokens that fits next to the image, in `size` bytes and in the positions.

        Kept tokens keep their positions, so dropped tokens still use up positions.
        """
        positions = max(0, self.config.text_config.max_position_embeddings - self.tokens)
        return _largest(positions, lambda text: self.memory(keep, text=text).total <= size)


def _largest(limit: int, holds: Callable[[int], bool]) -> int:
    """Find the largest of 1 … limit for which `holds`, by bisection; 0 if there is none."""
    return bisect_right(range(1, limit + 1), False, key=lambda number: not holds(number))


def parse_ratio(text: str) -> float:
    """Parse a latency: 0.5x → 0.5.

    Raises:
        ValueError: If the text is not a ratio in (0, 1].
    """
    found = re.fullmatch(r"(\d*\.?\d+)x?", text.strip())
    if not found or not 0 < float(found[1]) <= 1:
        raise ValueError(f"a latency is a ratio to the unpruned prefill such as 0.5x, at most 1x, got {text!r}")
    return float(found[1])


def parse_bytes(text: str) -> int:
    """Parse a size: 4GiB → 4294967296.

    Raises:
        ValueError: If the text is not a size.
    """
    found = re.fullmatch(r"(\d*\.?\d+)\s*([KMG]i?B|B)", text.strip())
    if not found or not float(found[1]):
        raise ValueError(f"a memory is a size such as 4GiB or 800MB, got {text!r}")
    return int(float(found[1]) * UNITS[found[2]])
