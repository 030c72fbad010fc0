"""A prompt of words, one image and words, as the vectors of methods inside the language model give it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from eadp.parity.vectors import Vector
from eadp.runtime.compact import Compaction


def nothing() -> Tensor:
    return torch.zeros(0, 1)


@dataclass(frozen=True)
class Shown:
    """A `LayerView` of given tensors. weights: X×M, the attention of each word, mean over heads.

    norm: d, the weight of the final RMS norm; eps: its epsilon.
    """

    visual: Tensor = field(default_factory=nothing)
    text: Tensor = field(default_factory=nothing)
    visual_keys: Tensor = field(default_factory=nothing)
    text_keys: Tensor = field(default_factory=nothing)
    visual_inputs: Tensor = field(default_factory=nothing)
    text_inputs: Tensor = field(default_factory=nothing)
    visual_places: Tensor = field(default_factory=nothing)
    text_places: Tensor = field(default_factory=nothing)
    weights: Tensor = field(default_factory=nothing)
    norm: Tensor = field(default_factory=nothing)
    eps: float = 0.0

    def normed(self, states: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(states, self.norm.shape, self.norm, self.eps)

    def attention(self, words: Tensor | None = None) -> Tensor:
        return self.weights[-1:] if words is None else self.weights[words]


def image_of(vector: Vector) -> Tensor:
    """N, where the image's tokens stand in the sequence."""
    return vector.settings["start"] + torch.arange(vector.settings["N"])


def words_of(vector: Vector) -> Tensor:
    """X, where the words behind the image stand."""
    return vector.settings["start"] + vector.settings["N"] + torch.arange(vector.settings["words"])


def left(vector: Vector, kept: Tensor) -> Compaction:
    """What becomes of the sequence where these tokens of the image stay."""
    image, words = image_of(vector), words_of(vector)
    keep = torch.ones(1, len(image) + len(words) + vector.settings["start"], dtype=torch.bool)
    keep[0, image] = False
    keep[0, image[kept]] = True
    return Compaction.from_mask(keep)
