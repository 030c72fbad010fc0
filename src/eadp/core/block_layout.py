"""Blocks of different sizes as one padded batch, without reading anything back from the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from eadp.core.device_tables import numbers_on_device


@dataclass(frozen=True)
class BlockLayout:
    """Where B blocks (crops, frames) lie among N tokens. The sizes are known on the host.

    Attributes:
        blocks: The range of token indices of each block. Blocks do not overlap.
        device: Where the tokens are.
    """

    blocks: tuple[slice, ...]
    device: torch.device

    @classmethod
    def of(cls, blocks: Sequence[slice], device: torch.device) -> BlockLayout:
        """Return the layout of these blocks; the same one each time, so that its tensors are made once."""
        return _layout(tuple((block.start, block.stop) for block in blocks), device)

    @classmethod
    def following(cls, sizes: Sequence[int], device: torch.device) -> BlockLayout:
        """Build the layout of blocks of these sizes that follow each other."""
        ends = list(accumulate(sizes))
        return cls.of([slice(end - size, end) for end, size in zip(ends, sizes, strict=True)], device)

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def sizes(self) -> list[int]:
        """The number of tokens of each block."""
        return [block.stop - block.start for block in self.blocks]

    @cached_property
    def largest(self) -> int:
        """The size of the largest block, to which all are padded."""
        return max(self.sizes)

    @cached_property
    def is_regular(self) -> bool:
        """Whether the blocks have equal sizes and follow each other, so that a batch of them is only another view."""
        return all(block == slice(i * self.largest, (i + 1) * self.largest) for i, block in enumerate(self.blocks))

    def covers(self, tokens: int) -> bool:
        """Return whether the blocks follow each other from the first of so many tokens to the last."""
        starts = [0, *(block.stop for block in self.blocks)]
        return all(block.start == start for block, start in zip(self.blocks, starts, strict=False)) and (
            starts[-1] == tokens
        )

    @cached_property
    def sizes_on_device(self) -> Tensor:
        """B, int32."""
        return numbers_on_device(tuple(self.sizes), self.device)

    @cached_property
    def starts_on_device(self) -> Tensor:
        """B, int64, the first token of each block."""
        return numbers_on_device(tuple(block.start for block in self.blocks), self.device, torch.long)

    @cached_property
    def is_token(self) -> Tensor:
        """B×largest, false where a block is padded."""
        with torch.inference_mode(False):
            return torch.arange(self.largest, device=self.device) < self.sizes_on_device[:, None]

    @cached_property
    def token_index(self) -> Tensor:
        """B×largest, the token at each place of the batch; at padded places, the last token of the block."""
        with torch.inference_mode(False):
            places = torch.arange(self.largest, device=self.device)
            return self.starts_on_device[:, None] + torch.minimum(places, self.sizes_on_device[:, None].long() - 1)

    def stack(self, values: Tensor) -> Tensor:
        """Return the values of N tokens (N×…) as a batch of blocks: B×largest×…, padded with zeros."""
        if self.is_regular:
            return values[: len(self) * self.largest].unflatten(0, (len(self), self.largest))
        stacked = values[self.token_index]
        return stacked.where(self.is_token.reshape(self.is_token.shape + (1,) * (stacked.ndim - 2)), 0)

    def unstack(self, stacked: Tensor) -> Tensor:
        """Return a batch of blocks (B×largest×…) as values of all blocks' tokens, block after block."""
        if self.is_regular:
            return stacked.flatten(0, 1)
        return torch.cat([each[:size] for each, size in zip(stacked, self.sizes, strict=True)])


@lru_cache(maxsize=64)
def _layout(ranges: tuple[tuple[int, int], ...], device: torch.device) -> BlockLayout:
    return BlockLayout(tuple(slice(start, stop) for start, stop in ranges), device)
