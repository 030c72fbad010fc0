"""The training of a LoRA: its updates are added to the outputs of a frozen language model's linear layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from eadp.pocket.lora import SCALE, linear_layers, merge

RANK = 16


class Lora(nn.Module):
    """The updates of all linear layers inside the layers of a model.

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
        for name, linear in linear_layers(model).items():
            self.down[name] = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
            self.up[name] = nn.Parameter(torch.zeros(linear.out_features, rank))

    def attach(self, model: nn.Module) -> None:
        """Add the updates to the outputs of the model's linear layers."""
        for name, linear in linear_layers(model).items():
            self.handles.append(linear.register_forward_hook(self._make_hook(name)))

    def detach(self) -> None:
        """Undo `attach`."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def merge_into(self, model: nn.Module) -> None:
        """Add the updates to the model's weights. The updates must not be attached as well."""
        if self.handles:
            raise ValueError("the updates are attached; detach them before they are merged into the weights")
        merge(model, dict(self.down.items()), dict(self.up.items()))

    def _make_hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def add_update(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            (hidden,) = inputs
            down, up = (part[name].to(hidden.dtype) for part in (self.down, self.up))
            return output + SCALE * (hidden @ down.mT) @ up.mT

        return add_update
