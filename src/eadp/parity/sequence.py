"""Prompts of the vectors for methods that prune inside the language model: text, one image, text."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from eadp.parity.vectors import GoldenVector
from eadp.runtime.compact import Compaction


def _empty() -> Tensor:
    return torch.zeros(0, 1)


@dataclass(frozen=True)
class GivenLayerView:
    """A `LayerView` whose tensors are given. What a method does not use may be left out.

    Attributes:
        weights: X×M, the attention of each of the X text tokens after the image to each visual token, averaged over
            heads.
        norm: d, the weights of the final RMS norm.
        eps: Epsilon of that norm.
    """

    visual: Tensor = field(default_factory=_empty)
    text: Tensor = field(default_factory=_empty)
    visual_keys: Tensor = field(default_factory=_empty)
    text_keys: Tensor = field(default_factory=_empty)
    visual_inputs: Tensor = field(default_factory=_empty)
    text_inputs: Tensor = field(default_factory=_empty)
    visual_places: Tensor = field(default_factory=_empty)
    text_places: Tensor = field(default_factory=_empty)
    weights: Tensor = field(default_factory=_empty)
    norm: Tensor = field(default_factory=_empty)
    eps: float = 0.0

    def normed(self, states: Tensor) -> Tensor:
        """Apply the final RMS norm."""
        return torch.nn.functional.rms_norm(states, self.norm.shape, self.norm, self.eps)

    def attention(self, words: Tensor | None = None) -> Tensor:
        """Return the attention of these text tokens, or of the last one."""
        return self.weights[-1:] if words is None else self.weights[words]


def image_positions(vector: GoldenVector) -> Tensor:
    """Return the N positions of the image's tokens in the sequence."""
    return vector.settings["start"] + torch.arange(vector.settings["N"])


def text_positions(vector: GoldenVector) -> Tensor:
    """Return the X positions of the text tokens after the image."""
    return vector.settings["start"] + vector.settings["N"] + torch.arange(vector.settings["words"])


def compaction_keeping(vector: GoldenVector, kept: Tensor) -> Compaction:
    """Build the compaction of the sequence that keeps only these tokens of the image."""
    image, text = image_positions(vector), text_positions(vector)
    keep = torch.ones(1, len(image) + len(text) + vector.settings["start"], dtype=torch.bool)
    keep[0, image] = False
    keep[0, image[kept]] = True
    return Compaction.from_mask(keep)
