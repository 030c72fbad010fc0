"""What a family of models says about itself, and what a picture in a prompt is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eadp.core.types import Box, Grid, Layout, TowerAttention
from eadp.models.overrides import Overrides
from eadp.models.views import block_views, flat_crops

Arrange = Callable[[Tensor], Tensor]
Anew = Callable[[Grid], list[Tensor]]


@dataclass(frozen=True)
class TowerRows:
    """A picture's tokens before the model's projector.

    rows:    N×w, in the order of the tokens.
    cls:     blocks×w, the CLS token of each block; None where the tower has none.
    project: K×w → K×d, the model's own projector, which takes any such row by itself.
    """

    rows: Tensor
    cls: Tensor | None
    project: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Picture:
    """One image (or clip) of N tokens as it lies in the prompt.

    grids, layout: as in `VisualTokens`; N tokens, block after block.
    slots:    N, which of the picture's placeholders each token fills, counted from 0.
    length:   the picture's placeholders: its N tokens and its newlines.
    newlines: N, the slot of the newline that ends each token's row; −1 where none does.
    states:   crops×cells×d, hidden states of the vision tower for guides that align those; None where there are none.
    arrange:  crops×cells×c → N×c, does to aligned states what the model does to the projected features.
    crops:    how many sequences of the vision tower it takes.
    shown:    which of them each block shows; None: the first the first, and so on.
    regions:  which part of its crop each block shows; None: all of it.
    attention: as in `VisualTokens`.
    tower:    the tokens before the projector; None where nobody asked, or the projector takes no such rows.
    anew:     for each block, a function that sees it again at another grid, as `Family.encode` says; only where the
              method needs pixels. square_only: only at square ones.
    """

    grids: Sequence[Grid]
    slots: Tensor
    length: int
    newlines: Tensor
    layout: Layout | None = None
    states: Tensor | None = None
    arrange: Arrange | None = None
    crops: int = 1
    shown: Sequence[int] | None = None
    regions: Sequence[Box] | None = None
    attention: Sequence[TowerAttention] = ()
    tower: TowerRows | None = None
    anew: Sequence[Anew] = ()
    square_only: bool = False

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def newline_slots(self) -> Tensor:
        """The slots of its newlines, sorted."""
        return self.newlines[self.newlines >= 0].unique()

    @classmethod
    def plain(cls, grids: Sequence[Grid], **where: Any) -> Picture:
        """A picture whose tokens follow each other block after block, with no newlines."""
        n = sum(rows * columns for rows, columns in grids)
        return cls(grids, torch.arange(n), n, torch.full((n,), -1), **where)


@dataclass(frozen=True)
class TowerLayer:
    """What one attention layer of the vision tower did in one call, in the tower's own order of B sequences of L.

    keys: B×L×heads×c. cls: B×L, the first query's row, mean over heads; None for towers without a CLS token.
    received: B×L, mean over heads, sum over queries; None where nobody asked.
    cls_full_width: B×L, the first query's row with all heads as one.
    """

    layer: int
    depth: int
    keys: Tensor
    cls: Tensor | None
    received: Tensor | None
    cls_full_width: Tensor | None = None


@dataclass(frozen=True)
class Seen:
    """What the vision side was asked and how much it gave.

    arguments: of `get_image_features` or `get_video_features`, without the pixels.
    pixels:    the shape of the pixels.
    lengths:   rows of each entry of `pooler_output`, before `generate` repeats them for beams.
    attention: of the tower's layers that the method asked for.
    values:    the pixels, where the method asked for them.
    """

    modality: str
    arguments: dict[str, Any]
    pixels: tuple[int, ...]
    lengths: list[int]
    attention: Sequence[TowerLayer] = ()
    values: Tensor | None = None

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
    tower_name: ClassVar[str] = "vision_tower"
    """What the base model calls its vision tower."""
    modalities: ClassVar[tuple[str, ...]] = ("image",)
    square_only: ClassVar[bool] = False
    """At another resolution too, the model takes only square grids."""
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

    @property
    def tower(self) -> nn.Module:
        return self.base.get_submodule(self.tower_name)

    @property
    def has_cls(self) -> bool:
        """The tower's sequences begin with a CLS token."""
        embeddings = getattr(self.tower, "embeddings", None)
        return any(hasattr(embeddings, name) for name in ("class_embedding", "cls_token"))

    def tower_attention(self) -> list[nn.Module]:
        """The attention modules of the tower, layer by layer. (A pooling head has none with a configuration.)"""
        return [
            module
            for module in self.tower.modules()
            if type(module).__name__.endswith("Attention") and hasattr(module, "config")
        ]

    def tower_tokens(self, seen: Seen, pictures: Sequence[Picture], rows: Tensor) -> list[Tensor]:
        """N×c for each picture from the B×L×c of the tower's sequences; what becomes one token is averaged."""
        crops = rows[:, int(self.has_cls) :].split([picture.crops for picture in pictures])
        return [cast(Arrange, picture.arrange)(part) for picture, part in zip(pictures, crops, strict=True)]

    def tower_rows(self, seen: Seen, output: Any, pictures: Sequence[Picture]) -> Sequence[TowerRows | None]:
        """The tokens of each picture before the projector; None where the language model's tokens are not one to one
        with rows that the projector takes by themselves."""
        return [None] * len(pictures)

    def views(self, seen: Seen, pictures: Sequence[Picture]) -> list[list[Tensor]]:
        """The pixels of each block of each picture, …×3×height×width."""
        return block_views(flat_crops(cast(Tensor, seen.values), pictures), pictures)

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        """A block's pixels at the resolution of a grid: h·w×d for the language model, then for each DeepStack layer."""
        tower = type(self.tower).__name__
        raise ValueError(f"{tower} cannot be shown an image at another resolution here; choose another method")

    def stock_features(self, pixels: Tensor, **asked: Any) -> Any:
        """What the model itself makes of pixels, seen by none of our hooks."""
        kind: Any = type(self.base)
        return kind.get_image_features(self.base, pixels, return_dict=True, **asked)

    def keep_padding(self, overrides: Overrides, processor: Any) -> None:
        """Make model and processor keep the tokens of padding that the model would crop away, where it does."""
        raise ValueError(f"{self.config.model_type} crops no padding away, so that unpad=False has nothing to change")

    def token_id(self, modality: str) -> int:
        return getattr(self.config, f"{modality}_token_id")

    @abstractmethod
    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        """The pictures of one modality, row by row, in the order in which they stand in the prompt.

        output: what `get_image_features` gave; beams may have repeated its `pooler_output`, never its hidden states.
        """


def averaged(cells: Tensor, side: int) -> Tensor:
    """crops×cells×c on square grids → crops×tokens×c, the mean of each side×side cells."""
    grid = cells.unflatten(1, square(cells.shape[1], "the vision tower")).permute(0, 3, 1, 2)
    return F.avg_pool2d(grid, side).flatten(2).mT


def square(cells: int, what: str) -> Grid:
    """The side of a square grid of so many cells, twice."""
    side = round(cells**0.5)
    if side * side != cells:
        raise ValueError(f"{what} has {cells} tokens, which is no square grid, and the family gives no other")
    return side, side
