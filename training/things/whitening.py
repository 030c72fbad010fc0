"""The projector learns from whitened features. The package gets one that takes features as they are.

LLaVA's projector reads hidden states that no layer norm has scaled. A few directions in which all tokens are alike
have most of their variance, and what tells things apart has little, so that a projector learns it slowly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEAST_VARIANCE = 1e-4
"""Directions with less variance than this share of the largest are not enlarged further."""


class WhitenedProjector(nn.Module):
    """Moves features to a mean of 0 and a covariance of 1, and projects them. Before `whiten`, it moves nothing.

    Args:
        projector: LLaVA's projector.
        width: Width of the features.
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, projector: nn.Module, width: int) -> None:
        super().__init__()
        self.projector = projector
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("matrix", torch.eye(width))

    def forward(self, features: Tensor) -> Tensor:
        return self.projector((features - self.mean) @ self.matrix)

    def whiten(self, features: Tensor) -> None:
        """Take mean and covariance from some features, n×d."""
        values, vectors = torch.linalg.eigh(torch.cov(features.double().T))
        scales = values.clamp(min=LEAST_VARIANCE * float(values[-1])).rsqrt()
        self.mean.copy_(features.mean(0))
        self.matrix.copy_((vectors * scales) @ vectors.T)


def fold(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of LLaVA's projector that does what a `WhitenedProjector` with these weights does."""
    mean, matrix = weights["mean"].double(), weights["matrix"].double()
    inner = {name.removeprefix("projector."): value for name, value in weights.items() if name.startswith("projector.")}
    first = inner["linear_1.weight"].double() @ matrix
    bias = inner["linear_1.bias"].double() - first @ mean
    return inner | {"linear_1.weight": first.float(), "linear_1.bias": bias.float()}
