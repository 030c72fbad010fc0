"""Which budget reaches a goal: latency by multiply-adds, memory by weights, KV cache and activations.

Assumed: time goes with the multiply-adds of a prefill (`flops`), everything included; a batch multiplies cache and
activations, not weights (`footprint`). `eadp bench` measures how much of that a machine gives.
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
from eadp.architectures.memory import UNITS, Footprint, footprint, format_bytes, weight_bytes
from eadp.core import Grid
from eadp.measure.flops import count

LARGEST_BATCH = 1 << 16


@dataclass(frozen=True)
class Planner:
    """One image and `text` tokens a prompt. text: question, template and answer. words: that the guide reads."""

    config: Any
    grids: list[Grid]
    text: int = 40
    words: int = 20
    dtype: torch.dtype = torch.bfloat16
    batch: int = 1

    @cached_property
    def model(self) -> Any:
        return build_meta_model(self.config)

    @property
    def tokens(self) -> int:
        return sum(prod(grid) for grid in self.grids)

    def latency(self, keep: int) -> float:
        """A prefill's multiply-adds as a ratio to the one with all tokens."""
        return self._multiply_adds(keep) / self._whole

    @cached_property
    def _whole(self) -> int:
        return self._multiply_adds(self.tokens)

    def _multiply_adds(self, keep: int) -> int:
        return count(self.model, self.grids, keep, self.text, self.words).total

    def memory(self, keep: int, batch: int | None = None, text: int | None = None) -> Footprint:
        text = self.text if text is None else text
        return footprint(self.model, self._weights, self.grids, keep, text, self.dtype, batch or self.batch)

    @cached_property
    def _weights(self) -> int:
        return weight_bytes(self.model, self.dtype)

    def for_latency(self, ratio: float) -> int:
        """The most tokens that reach it."""
        if ratio >= 1:
            return self.tokens
        keep = _most(self.tokens, lambda keep: self.latency(keep) <= ratio)
        if not keep:
            raise ValueError(
                f"no budget reaches {ratio:g}x: with one token left a prefill still takes {self.latency(1):.2f}x, most "
                "of it in the vision tower, which sees the whole image"
            )
        return keep

    def for_memory(self, size: int) -> int:
        """The most tokens that fit. All of them need no room for a choice, so they may fit where fewer do not."""
        if self.memory(self.tokens).total <= size:
            return self.tokens
        keep = _most(self.tokens, lambda keep: self.memory(keep).total <= size)
        if not keep:
            least = self.memory(1)
            raise ValueError(
                f"nothing fits into {format_bytes(size)}: the weights take {format_bytes(least.weights)}, and a "
                f"prefill with one token left {format_bytes(least.cache + least.activations)} more; take a smaller "
                "dtype or batch"
            )
        return keep

    def batch_within(self, keep: int, size: int) -> int:
        """The most prompts at once that fit; 0 for none."""
        return _most(LARGEST_BATCH, lambda batch: self.memory(keep, batch=batch).total <= size)

    def context_within(self, keep: int, size: int) -> int:
        """The most text tokens of a prompt that fit beside the image and that the model has positions for.

        Kept tokens keep their places in the sequence, so dropped ones still take up positions.
        """
        places = max(0, self.config.text_config.max_position_embeddings - self.tokens)
        return _most(places, lambda text: self.memory(keep, text=text).total <= size)


def _most(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest of 1 … limit for which it holds, where it holds up to some number and not beyond; 0 for none."""
    return bisect_right(range(1, limit + 1), False, key=lambda number: not holds(number))


def ratio_of(text: str) -> float:
    """0.5x → 0.5."""
    found = re.fullmatch(r"(\d*\.?\d+)x?", text.strip())
    if not found or not 0 < float(found[1]) <= 1:
        raise ValueError(f"a latency is a ratio to the unpruned prefill such as 0.5x, at most 1x, got {text!r}")
    return float(found[1])


def bytes_of(text: str) -> int:
    """4GiB → 4294967296."""
    found = re.fullmatch(r"(\d*\.?\d+)\s*([KMG]i?B|B)", text.strip())
    if not found or not float(found[1]):
        raise ValueError(f"a memory is a size such as 4GiB or 800MB, got {text!r}")
    return int(float(found[1]) * UNITS[found[2]])
