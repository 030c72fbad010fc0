"""Visual words: what an ideal projector would give the language model for every patch, in the model's own words."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from eadp.models.guides.class_words import class_words
from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.render import GRID
from eadp.pocket.things.scene import SIGN, SIGN_COLOURS, SIGN_NAME, WORDS, Scene, Thing
from eadp.pocket.things.view import name_of
from training.things.places import NUMBERS, as_numbers

BACKGROUND = "background"
ACROSS, DOWN = ("left", "middle", "right"), ("top", "middle", "bottom")
"""The words for places. A place between two of them is a mixture of both."""

PLACE_WEIGHT = 0.7
NOISE = 0.15
"""Standard deviation of the noise, as a share of that of the visual words."""


def full_name(thing: Thing) -> str:
    """Return the name of a thing, with the word on it if it is a sign: "duck", "red sign STOP"."""
    return name_of(thing) + (f" {thing.word}" if thing.kind == SIGN else "")


def named(scenes: list[Scene], owners: Tensor) -> Tensor:
    """Return the numbers of the names of what patches show.

    Args:
        scenes: B scenes.
        owners: B×n, the thing that each patch shows; −1 for none.
    """
    numbers = all_names()
    # Owner −1 is the last entry of each table.
    tables = [torch.tensor([*(numbers[full_name(t)] for t in s.things), numbers[BACKGROUND]]) for s in scenes]
    return torch.stack([table[shown] for table, shown in zip(tables, owners, strict=True)])


@cache
def all_names() -> dict[str, int]:
    """Number all names of things, and the background."""
    signs = [f"{colour} {SIGN_NAME} {word}" for colour in SIGN_COLOURS for word in WORDS]
    return {name: number for number, name in enumerate((*(kind.name for kind in kinds()), *signs, BACKGROUND))}


class VisualWords(nn.Module):
    """Makes visual words from a scene and the things that its patches show.

    The vector of a patch that shows a thing is the mean of the embeddings of the tokens of its name ("red sign STOP"
    for a sign), plus PLACE_WEIGHT times the mean of the words for the place of the thing's centre. The background is
    named so, at the place of the patch. The words for places are coarse, so a learnt matrix adds what
    waves over the image, and the size of the thing, say precisely. It starts at 0.

    Args:
        embedding: The embeddings of the language model. They are not a part of this module.
        tokenizer: Its tokenizer.
    """

    def __init__(self, embedding: nn.Embedding, tokenizer: Any) -> None:
        super().__init__()
        self.embeddings, self.tokenizer = [embedding], tokenizer  # In a list, so that it is not registered.
        self.ids: dict[str, Tensor] = {}
        self.precise = nn.Linear(NUMBERS, embedding.embedding_dim, bias=False)
        nn.init.zeros_(self.precise.weight)

    def embed(self, text: str) -> Tensor:
        """Return the mean of the embeddings of a text's tokens, with a space before it."""
        if text not in self.ids:
            self.ids[text] = torch.tensor(self.tokenizer(f" {text}", add_special_tokens=False)["input_ids"])
        return self.embeddings[0](self.ids[text]).float().mean(0)

    def places(self, outlines: Tensor) -> Tensor:
        """Return what is added for places and sizes, …×d.

        Args:
            outlines: …×3: how far right and how far down, from 0 to 1, and the size in patches, 0 for the background.
        """
        return self._coarse_places(outlines[..., :2]) + self.precise(as_numbers(outlines))

    def _coarse_places(self, where: Tensor) -> Tensor:
        anchors = torch.linspace(0, 1, len(ACROSS))
        share = (1 - (where[..., None] - anchors).abs() * 2).clamp(min=0)
        across, down = (torch.stack([self.embed(word) for word in words]) for words in (ACROSS, DOWN))
        return PLACE_WEIGHT * (share[..., 0, :] @ across + share[..., 1, :] @ down) / 2

    def of_classes(self, classes: Tensor, keep: Tensor) -> Tensor:
        """Return the visual words of the cells of photographs, as `eadp.pocket.photo` makes them: B×n×d.

        Args:
            classes: B×n×1000, the probabilities of the classes.
            keep: B×n, the cells.
        """
        names = torch.stack([self.embed(name) for name in class_words().names])
        where = torch.stack((keep % GRID, keep // GRID), -1) / (GRID - 1)
        return classes @ names + self._coarse_places(where)

    def targets(self, names: Tensor, outlines: Tensor) -> Tensor:
        """Return the visual words of patches, …×d, without noise.

        Args:
            names: The numbers of the names of what the patches show.
            outlines: …×3, where that is, and how large, as `outlines_of` returns them.
        """
        return self.names()[names] + self.places(outlines)

    def names(self) -> Tensor:
        """Return the vectors of all names, without a place, in the order of `all_names`."""
        return torch.stack([self.embed(name) for name in all_names()])

    def add_noise(self, words: Tensor) -> Tensor:
        """Add noise, as a projector makes errors."""
        return words + NOISE * words.detach().std() * torch.randn(words.shape)
