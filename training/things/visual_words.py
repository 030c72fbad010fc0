"""Visual words: what an ideal projector would give the language model for every patch, in the model's own words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eadp.pocket.things.questions import name_of
from eadp.pocket.things.render import GRID
from eadp.pocket.things.scene import SIGN, Scene

BACKGROUND = "background"
ACROSS, DOWN = ("left", "middle", "right"), ("top", "middle", "bottom")
"""The words for places. A place between two of them is a mixture of both."""

PLACE_WEIGHT = 0.7
NOISE = 0.15
"""Standard deviation of the noise, as a share of that of the embeddings."""


class VisualWords:
    """Makes visual words from a scene and the things that its patches show.

    The vector of a patch is the mean of the embeddings of the tokens of its thing's name ("red sign STOP" for a sign),
    plus PLACE_WEIGHT times the mean of the words for its place.

    Args:
        embedding: The embeddings of the language model.
        tokenizer: Its tokenizer.
    """

    def __init__(self, embedding: nn.Embedding, tokenizer: Any) -> None:
        self.table, self.tokenizer = embedding.weight.detach(), tokenizer
        self.known: dict[str, Tensor] = {}
        anchors = torch.linspace(0, 1, 3)
        share = (1 - (torch.linspace(0, 1, GRID)[:, None] - anchors).abs() * 2).clamp(min=0)
        across, down = (share @ torch.stack([self.embed(word) for word in words]) for words in (ACROSS, DOWN))
        cells = torch.arange(GRID * GRID)
        self.places = PLACE_WEIGHT * (across[cells % GRID] + down[cells // GRID]) / 2

    def embed(self, text: str) -> Tensor:
        """Return the mean of the embeddings of a text's tokens, with a space before it."""
        if text not in self.known:
            ids = self.tokenizer(f" {text}", add_special_tokens=False)["input_ids"]
            self.known[text] = self.table[ids].mean(0)
        return self.known[text]

    def targets(self, scenes: list[Scene], owners: Tensor) -> Tensor:
        """Return the visual words of all patches, B×GRID²×d, without noise.

        Args:
            scenes: B scenes.
            owners: B×GRID², the thing that each patch shows; −1 for none.
        """
        rows = []
        for scene, shown in zip(scenes, owners, strict=True):
            texts = [name_of(thing) + (f" {thing.word}" if thing.kind == SIGN else "") for thing in scene.things]
            table = torch.stack([self.embed(text) for text in (*texts, BACKGROUND)])
            rows.append(table[shown])
        return torch.stack(rows) + self.places

    def add_noise(self, words: Tensor) -> Tensor:
        """Add noise, as a projector makes errors."""
        return words + NOISE * self.table.std() * torch.randn(words.shape)
