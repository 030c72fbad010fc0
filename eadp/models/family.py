"""What a family of models says about itself, and what a picture in a prompt is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from eadp.core.types import Grid, Layout

Arrange = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Picture:
    """One image (or clip) of N tokens as it lies in the prompt.

    grids, layout: as in `VisualTokens`; N tokens, block after block.
    slots:    N, which of the picture's placeholders each token fills, counted from 0.
    length:   the picture's placeholders: its N tokens and its newlines.
    newlines: N, the slot of the newline that ends each token's row; −1 where none does.
    states:   crops×cells×d, hidden states of the vision tower for guides that align those; None where there are none.
    arrange:  crops×cells×c → N×c, does to aligned states what the model does to the projected features.
    """

    grids: Sequence[Grid]
    slots: Tensor
    length: int
    newlines: Tensor
    layout: Layout | None = None
    states: Tensor | None = None
    arrange: Arrange | None = None

    def __len__(self) -> int:
        return len(self.slots)

    @classmethod
    def plain(cls, grids: Sequence[Grid], **where: Any) -> Picture:
        """A picture whose tokens follow each other block after block, with no newlines."""
        n = sum(rows * columns for rows, columns in grids)
        return cls(grids, torch.arange(n), n, torch.full((n,), -1), **where)


@dataclass(frozen=True)
class Seen:
    """What the vision side was asked and how much it gave.

    arguments: of `get_image_features` or `get_video_features`, without the pixels.
    pixels:    the shape of the pixels.
    lengths:   rows of each entry of `pooler_output`, before `generate` repeats them for beams.
    """

    modality: str
    arguments: dict[str, Any]
    pixels: tuple[int, ...]
    lengths: list[int]

    def listed(self, argument: str) -> list[Any]:
        return torch.as_tensor(self.arguments[argument]).tolist()


@dataclass(frozen=True)
class Prompt:
    """Where one modality's placeholders are. ids: B×L; places: B, the columns of the placeholders in each row."""

    ids: Tensor | None
    places: list[Tensor]

    def runs(self, row: int) -> list[Tensor]:
        """The placeholders of a row, cut where other tokens stand between them."""
        places = self.places[row]
        if not len(places):
            return []
        breaks = (places.diff() != 1).nonzero().flatten() + 1
        return list(places.tensor_split(breaks))


class Family(ABC):
    """One family of models. Subclasses say where things are; they never touch a cache, a mask or a hook."""

    types: ClassVar[tuple[str, ...]]
    """The `model_type`s of the configurations that belong to it."""
    text_name: ClassVar[str] = "language_model"
    """What the base model calls its language model."""
    modalities: ClassVar[tuple[str, ...]] = ("image",)
    mrope: ClassVar[bool] = False
    """Positions are coordinates: time, row, column."""
    makes_masks: ClassVar[bool] = False
    """The base model builds 4-D masks itself, before it calls the language model."""
    continues_with_images: ClassVar[bool] = True
    """The stock model handles a new image on a cache that already holds something."""

    def __init__(self, base: nn.Module) -> None:
        self.base: Any = base
        self.config: Any = base.config

    @property
    def text_model(self) -> nn.Module:
        return self.base.get_submodule(self.text_name)

    def token_id(self, modality: str) -> int:
        return getattr(self.config, f"{modality}_token_id")

    @abstractmethod
    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        """The pictures of one modality, row by row, in the order in which they stand in the prompt.

        output: what `get_image_features` gave; beams may have repeated its `pooler_output`, never its hidden states.
        """


def square(cells: int, what: str) -> Grid:
    """The side of a square grid of so many cells, twice."""
    side = round(cells**0.5)
    if side * side != cells:
        raise ValueError(f"{what} has {cells} tokens, which is no square grid, and the family gives no other")
    return side, side
