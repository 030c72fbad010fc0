"""Low-rank adaptation (LoRA, Hu et al., 2021) of the linear layers of a language model: y = W x + SCALE · B A x."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

SCALE = 2.0
"""Factor of the low-rank update: α / r."""


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers inside the transformer's layers, by name: not the head, which is tied to embeddings.

    Dots in the names are replaced, because the name of a parameter must not contain any.
    """
    named = model.named_modules()
    return {
        name.replace(".", "-"): module for name, module in named if isinstance(module, nn.Linear) and "layers." in name
    }


@torch.no_grad()
def merge(model: nn.Module, down: Mapping[str, Tensor], up: Mapping[str, Tensor]) -> None:
    """Add the updates to the weights of a model.

    Args:
        model: The language model.
        down: A of each linear layer, r×inputs, by the names of `linear_layers`.
        up: B of each linear layer, outputs×r.

    Raises:
        ValueError: If the updates are not those of the model's linear layers.
    """
    layers = linear_layers(model)
    if unknown := sorted((layers.keys() ^ down.keys()) | (layers.keys() ^ up.keys())):
        raise ValueError(f"the LoRA does not fit the model: one of them lacks {', '.join(unknown[:3])}")
    for name, linear in layers.items():
        linear.weight += SCALE * up[name].to(linear.weight) @ down[name].to(linear.weight)
