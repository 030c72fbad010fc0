"""Visual words: what the tower says of a cell, in the embeddings of the language model's own words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eadp.models.guides.class_words import class_words

PLACE_WORDS = ("left", "middle", "right", "top", "middle", "bottom")
"""The words for the tower's place channels, in their order."""

PLACE_WEIGHT = 0.7
"""Size of a cell's place beside what it shows. A place is the mean of a word for its column and one for its row."""


@torch.no_grad()
def write_visual_words(projector: nn.Module, embedding: nn.Embedding, tokenizer: Any) -> None:
    """Make LLaVA's projector translate what the tower says of a cell into visual words.

    A cell's visual word is Σ p(class) · embedding(name of the class) + PLACE_WEIGHT · embedding(place). An embedding of
    several tokens is their mean. This is linear in what the tower gives (`describe_cells`), so the projector is exact:
    its first layer holds the embeddings, its second is the identity.

    Args:
        projector: A `LlavaMultiModalProjector` without biases and with the identity as its activation.
        embedding: The input embeddings of the language model.
        tokenizer: Its tokenizer.

    Raises:
        ValueError: If the projector has biases or another activation.
    """
    first, activation, second = (getattr(projector, name) for name in ("linear_1", "act", "linear_2"))
    probe = torch.linspace(-9, 9, 5)
    if first.bias is not None or second.bias is not None or not torch.equal(activation(probe), probe):
        raise ValueError(
            "visual words need a linear projector: configure LLaVA with multimodal_projector_bias=False and "
            'projector_hidden_act="linear"'
        )
    names = torch.stack([embed(name, embedding, tokenizer) for name in class_words().names])
    places = torch.stack([embed(word, embedding, tokenizer) for word in PLACE_WORDS])
    words = torch.cat((names, PLACE_WEIGHT / 2 * places))
    first.weight.zero_()
    first.weight[:, : len(words)] = words.T
    nn.init.eye_(second.weight)


def embed(text: str, embedding: nn.Embedding, tokenizer: Any) -> Tensor:
    """Return the mean of the embeddings of a text's tokens, with a space before it: d."""
    ids = tokenizer(f" {text}", add_special_tokens=False)["input_ids"]
    return embedding.weight[ids].mean(0)
