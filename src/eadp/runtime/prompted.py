"""What comes into the first layer of the language model in a prefill."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eadp.runtime.compact import Compaction
from eadp.runtime.ledger import Ledger
from eadp.runtime.masks import Mask, segment, settled
from eadp.runtime.positions import lagging


@dataclass(frozen=True)
class Prompted:
    """What comes into the first layer.

    embeddings: B×P₀×d. mask: as the language model got it. valid: B×P₀, false for padding; None where there is none.
    past:    what the cache already had to remember. start: what its first layer holds.
    logical: the mask over everything, as if nothing had been dropped; length: of this call, likewise.
    tail:    how many columns at the end had nothing dropped among them.
    counted: no position ids were given, so that the model counts every column, padding too.
    """

    embeddings: Tensor
    mask: Mask
    valid: Tensor | None
    past: Ledger
    start: int
    logical: Mask
    length: int
    tail: int
    counted: bool = True

    @classmethod
    def of(
        cls, call: dict[str, Any], shortened: dict[str, Any], plan: Compaction | None, past: Ledger, start: int
    ) -> Prompted:
        """call: of the language model; shortened: the same after `plan`, where a method before it dropped tokens."""
        mask, length = call.get("attention_mask"), call["inputs_embeds"].shape[1]
        valid = segment(mask, length) if plan is None else plan.valid
        return cls(
            embeddings=shortened["inputs_embeds"].detach(),
            mask=shortened.get("attention_mask"),
            valid=None if valid is None or bool(valid.all()) else valid,
            past=past,
            start=start,
            logical=mask,
            length=length,
            tail=length if plan is None else plan.tail,
            counted=call.get("position_ids") is None,
        )

    @property
    def origin(self) -> Tensor | None:
        """B×1, the position at which the first column begins, where the model counts them; None where ids are given."""
        if not self.counted:
            return None
        begin = torch.full((len(self.embeddings), 1), self.start + self.past.offset, device=self.embeddings.device)
        return lagging(begin, self.past.shift)

    @cached_property
    def places(self) -> Tensor:
        """B×P₀, where each token stands in what the first layer sees, counted from 0 without padding."""
        rows, length = self.embeddings.shape[:2]
        device = self.embeddings.device
        before = settled(self.logical, self.past, self.start, rows, device)
        held = torch.full((rows, 1), self.start) if before is None else before.sum(1, keepdim=True).cpu()
        valid = torch.ones(rows, length, dtype=torch.bool) if self.valid is None else self.valid.cpu()
        return held + valid.cumsum(1) - 1
