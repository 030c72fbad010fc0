"""M-RoPE positions of prompts with pruned images and clips: kept tokens keep their coordinates, or all are renumbered.

The position of a text token depends on the grids of the images and clips before it, not on which of their tokens are
kept. So only the coordinates of the kept tokens are unknown before an image or clip is encoded. They are filled in
afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

VISUAL = -1
"""In `SpanLayout.token_ids`: the row of an image or frame, not of text."""
DIGIT_BASE = 256
"""The base of the digits of a number.

Numbers travel as channels of the features, digit by digit, because bfloat16 is exact for integers up to 256.
"""
DIGITS = 3
NUMBERS = 5
"""The numbers that each row carries: time, row and column of its token, its index in the span, and how many rows of the
span come before the first visual one."""
POSITION_CHANNELS = NUMBERS * DIGITS


@dataclass(frozen=True)
class SpanLayout:
    """The rows of an unpruned image or clip in the prompt, in order.

    Attributes:
        coordinates: 3×L, the time, row and column of each row, relative to the start of the span.
        token_ids: L, the token of each row of text (the times of a clip's frames), `VISUAL` for the others.
    """

    coordinates: Tensor
    token_ids: Tensor

    @classmethod
    def from_grid(cls, times: Sequence[int], rows: int, columns: int) -> SpanLayout:
        """Build the layout of an image or clip without text between its frames.

        Args:
            times: The time coordinate of each frame; [0] for an image.
            rows: Rows of each frame.
            columns: Columns of each frame.
        """
        axes = torch.meshgrid(torch.tensor(times), torch.arange(rows), torch.arange(columns), indexing="ij")
        coordinates = torch.stack(axes).flatten(1)
        return cls(coordinates, torch.full((coordinates.shape[1],), VISUAL))

    @classmethod
    def from_frames(cls, texts: Sequence[tuple[Sequence[int], Sequence[int]]], rows: int, columns: int) -> SpanLayout:
        """Build the layout of a clip with text before and after each frame.

        Args:
            texts: The tokens before and after each frame.
            rows: Rows of each frame.
            columns: Columns of each frame.
        """
        frame = cls.from_grid([0], rows, columns)
        parts: list[SpanLayout] = []
        for before, after in texts:
            parts += [cls._from_text(before), frame, cls._from_text(after)]
        coordinates, start = [], 0
        for part in parts:
            coordinates.append(part.coordinates + start)
            start += part.extent
        return cls(torch.cat(coordinates, dim=1), torch.cat([part.token_ids for part in parts]))

    @classmethod
    def _from_text(cls, token_ids: Sequence[int]) -> SpanLayout:
        positions = torch.arange(len(token_ids)).expand(3, -1)
        return cls(positions, torch.tensor(token_ids, dtype=torch.long))

    @property
    def extent(self) -> int:
        """How many positions the span takes: the text after it starts so much later than the span.

        The times of a clip without text between its frames do not count, as in transformers and in vLLM's own video
        pruning. In unpruned clips, vLLM counts them.
        """
        return int(self.coordinates[1:].max()) + 1 if self.coordinates.numel() else 0

    @property
    def is_visual(self) -> Tensor:
        """L, false for rows of text."""
        return self.token_ids == VISUAL

    def __len__(self) -> int:
        return len(self.token_ids)

    def keep(self, slots: Tensor) -> SpanLayout:
        """Drop visual rows.

        Args:
            slots: K, the visual rows that stay, counted among the visual rows.
        """
        kept = ~self.is_visual
        kept[self.is_visual.nonzero().flatten()[slots]] = True
        return SpanLayout(self.coordinates[:, kept], self.token_ids[kept])

    def gather_visual(self, visual_token: int) -> Tensor:
        """Return the token ids of the span as the prompt has them: all visual rows together, in place of the first.

        How many tokens each frame keeps is not known when the prompt is made, so the engine's prompt has all of them
        in the first frame. Each row's feature and position go where they belong, so only the token ids are reordered.

        Args:
            visual_token: The placeholder of a visual row.
        """
        first = int(self.is_visual.nonzero()[0])
        text = self.token_ids[~self.is_visual]
        visual = torch.full((int(self.is_visual.sum()),), visual_token)
        return torch.cat([text[:first], visual, text[first:]])

    def to_channels(self) -> Tensor:
        """Write the positions of the rows as channels: L×POSITION_CHANNELS, exact in bfloat16."""
        lead = int(self.is_visual.nonzero()[0])
        index = torch.arange(len(self))
        numbers = torch.stack([*self.coordinates, index, torch.full_like(index, lead)], dim=1)
        digits = [numbers // DIGIT_BASE**place % DIGIT_BASE for place in range(DIGITS)]
        return torch.stack(digits, dim=2).flatten(1)


@dataclass(frozen=True)
class PromptSpan:
    """An image or clip in a pruned prompt.

    Attributes:
        offset: The index of its first row.
        length: The number of its rows.
        layout: Its rows before pruning.
    """

    offset: int
    length: int
    layout: SpanLayout


def compute_prompt_positions(length: int, spans: Sequence[PromptSpan], renumber: bool = False) -> tuple[Tensor, int]:
    """Compute the positions of a prompt before its images and clips are encoded.

    The rows of an image or clip that starts at position s get −1 − s, until `fill_in_positions` replaces it.

    Args:
        length: The number of tokens of the pruned prompt.
        spans: The images and clips of the prompt.
        renumber: Whether to number all tokens from 0 without gaps if any image or clip is pruned.

    Returns:
        The 3×length positions, and the delta: the position of the next token minus the length of the prompt.
    """
    if renumber and any(span.length < len(span.layout) for span in spans):
        return torch.arange(length).expand(3, -1).clone(), 0
    positions = torch.empty(3, length, dtype=torch.long)
    column = position = 0
    for span in sorted(spans, key=lambda each: each.offset):
        text = span.offset - column
        positions[:, column : span.offset] = torch.arange(position, position + text)
        position += text
        column = span.offset + span.length
        positions[:, span.offset : column] = -1 - position
        position += span.layout.extent
    positions[:, column:] = torch.arange(position, position + length - column)
    return positions, position - column


def fill_in_positions(positions: Tensor, is_placeholder: Tensor, computed: int, channels: Sequence[Tensor]) -> Tensor:
    """Set the positions of the rows of images and clips that the engine is about to compute.

    Args:
        positions: 3×L, from `compute_prompt_positions` or from an earlier call.
        is_placeholder: L, whether a token of the prompt is a placeholder of an image or clip.
        computed: The number of tokens that the engine has computed.
        channels: The channels (`SpanLayout.to_channels`) of the next rows, for each image or clip. The first may begin
            in the middle of its image or clip, which is then where the engine has stopped.

    Returns:
        3×L, the new positions.
    """
    positions, column = positions.clone(), computed
    for each in channels:
        numbers = _read_numbers(each).to(positions.device)
        index, lead = numbers[3:, 0].tolist()
        if index == 0:
            column += int(is_placeholder[column:].nonzero()[0]) - lead
        part = positions[:, column : column + len(each)]
        # Positions that were filled in before or renumbered do not change.
        part.copy_(torch.where(part < 0, numbers[:3] - part - 1, part))
        column += len(each)
    return positions


def _read_numbers(channels: Tensor) -> Tensor:
    """Read the numbers of each row from its channels: L×POSITION_CHANNELS → NUMBERS×L."""
    digits = channels.long().unflatten(1, (NUMBERS, DIGITS))
    return sum(digits[:, :, place] * DIGIT_BASE**place for place in range(DIGITS)).T
