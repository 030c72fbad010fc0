"""Blocks of different sizes as one padded batch, without reading anything back from the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


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
        """Build the layout of these blocks."""
        return cls(tuple(blocks), device)

    @classmethod
    def following(cls, sizes: Sequence[int], device: torch.device) -> BlockLayout:
        """Build the layout of blocks of these sizes that follow each other."""
        ends = list(accumulate(sizes))
        return cls(tuple(slice(end - size, end) for end, size in zip(ends, sizes, strict=True)), device)

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
        return all(
            block == slice(i * self.largest, (i + 1) * self.largest, block.step) for i, block in enumerate(self.blocks)
        )

    def covers(self, tokens: int) -> bool:
        """Return whether the blocks follow each other from the first of so many tokens to the last."""
        starts = [0, *(block.stop for block in self.blocks)]
        return all(block.start == start for block, start in zip(self.blocks, starts, strict=False)) and (
            starts[-1] == tokens
        )

    @cached_property
    def sizes_on_device(self) -> Tensor:
        """B, int32."""
        if len(set(self.sizes)) == 1:
            return torch.full((len(self),), self.largest, dtype=torch.int32, device=self.device)
        return torch.tensor(self.sizes, dtype=torch.int32, device=self.device)

    @cached_property
    def is_token(self) -> Tensor:
        """B×largest, false where a block is padded."""
        return (torch.arange(self.largest) < torch.tensor(self.sizes)[:, None]).to(self.device)

    @cached_property
    def token_index(self) -> Tensor:
        """B×largest, the token at each place of the batch; at padded places, the last token of the block."""
        starts, sizes = torch.tensor([block.start for block in self.blocks]), torch.tensor(self.sizes)
        index = starts[:, None] + torch.minimum(torch.arange(self.largest), sizes[:, None] - 1)
        return index.to(self.device)

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
