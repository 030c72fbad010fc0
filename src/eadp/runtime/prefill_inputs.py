"""The inputs of the language model's first layer in a prefill."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eadp.runtime.cache_map import CacheMap
from eadp.runtime.compact import Compaction, left_padding
from eadp.runtime.kept_columns import Choice
from eadp.runtime.masks import Mask, valid_past_columns
from eadp.runtime.positions import move_back


@dataclass(frozen=True)
class PrefillInputs:
    """The P₀ columns that enter the first layer, and what is known about them.

    Attributes:
        embeddings: B×P₀×d.
        position_ids: …×B×P₀, the positions from which the first layer's rotary embeddings are computed.
        mask: The attention mask, as the language model got it.
        valid: B×P₀, on the CPU, false for padding; None where there is none.
        past: The map of the cache before this call.
        start: How many columns the first layer of the cache holds.
        logical_mask: The mask over the whole logical sequence.
        length: The logical length of this call.
        tail: How many columns at the end had none dropped among them.
        counted: No position ids were given, so the model counts every column, padding included.
    """

    embeddings: Tensor
    position_ids: Tensor
    mask: Mask
    valid: Tensor | None
    past: CacheMap
    start: int
    logical_mask: Mask
    length: int
    tail: int
    counted: bool = True

    @classmethod
    def from_call(
        cls,
        call: dict[str, Any],
        shortened: dict[str, Any],
        position_ids: Tensor,
        choice: Choice,
        plan: Compaction | None,
        past: CacheMap,
        start: int,
    ) -> PrefillInputs:
        """Read the inputs off a call of the language model.

        Args:
            call: The keyword arguments of the call.
            shortened: The same after `plan`.
            position_ids: As in the class.
            choice: What a method before the language model kept.
            plan: What that did to the columns; None where it dropped nothing.
            past: The map of the cache before this call.
            start: How many columns the first layer of the cache holds.
        """
        mask, length = call.get("attention_mask"), call["inputs_embeds"].shape[1]
        return cls(
            embeddings=shortened["inputs_embeds"].detach(),
            position_ids=position_ids,
            mask=shortened.get("attention_mask"),
            valid=choice.valid if plan is None else left_padding(choice.kept.counts),
            past=past,
            start=start,
            logical_mask=mask,
            length=length,
            tail=length if plan is None else plan.tail,
            counted=call.get("position_ids") is None,
        )

    @property
    def first_position(self) -> Tensor | None:
        """B×1, the position of the first column where the model counts columns; None where ids are given."""
        if not self.counted:
            return None
        begin = torch.full((len(self.embeddings), 1), self.start + self.past.offset, device=self.embeddings.device)
        return move_back(begin, self.past.shift)

    @cached_property
    def places(self) -> Tensor:
        """B×P₀, the index of each token in the sequence that the first layer sees, counted without padding."""
        rows, length = self.embeddings.shape[:2]
        device = self.embeddings.device
        before = valid_past_columns(self.logical_mask, self.past, self.start, rows, device)
        held = torch.full((rows, 1), self.start) if before is None else before.sum(1, keepdim=True).cpu()
        valid = torch.ones(rows, length, dtype=torch.bool) if self.valid is None else self.valid
        return held + valid.cumsum(1) - 1
