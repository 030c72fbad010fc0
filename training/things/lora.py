"""Low-rank adaptation (LoRA, Hu et al., 2021) of the linear layers of a frozen language model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

RANK = 16
SCALE = 2.0
"""Factor of the low-rank update: α / r."""


class Lora(nn.Module):
    """The updates of all linear layers inside the layers of a model: y = W x + SCALE · B A x.

    The model is frozen and is not a part of this module, so that a checkpoint holds the updates alone. B starts at 0.

    Args:
        model: The language model.
        rank: The rank of every update.
    """

    def __init__(self, model: nn.Module, rank: int = RANK) -> None:
        super().__init__()
        model.requires_grad_(False)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        self.handles: list[RemovableHandle] = []
        for name, linear in _linear_layers(model).items():
            self.down[_key(name)] = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
            self.up[_key(name)] = nn.Parameter(torch.zeros(linear.out_features, rank))

    def attach(self, model: nn.Module) -> None:
        """Add the updates to the outputs of the model's linear layers."""
        for name, linear in _linear_layers(model).items():
            self.handles.append(linear.register_forward_hook(self._make_hook(_key(name))))

    def detach(self) -> None:
        """Undo `attach`."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    @torch.no_grad()
    def merge_into(self, model: nn.Module) -> None:
        """Add the updates to the model's weights. The updates must not be attached as well."""
        if self.handles:
            raise ValueError("the updates are attached; detach them before they are merged into the weights")
        for name, linear in _linear_layers(model).items():
            linear.weight += SCALE * self.up[_key(name)] @ self.down[_key(name)]

    def _make_hook(self, key: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def add_update(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            (hidden,) = inputs
            down, up = (part[key].to(hidden.dtype) for part in (self.down, self.up))
            return output + SCALE * (hidden @ down.mT) @ up.mT

        return add_update


def _linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers inside the transformer's layers, by name: not the head, which is tied to embeddings."""
    named = model.named_modules()
    return {name: module for name, module in named if isinstance(module, nn.Linear) and "layers." in name}


def _key(name: str) -> str:
    # A parameter's name must not contain dots.
    return name.replace(".", "-")
