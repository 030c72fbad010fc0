"""The projector learns from whitened features, and takes them as they are afterwards.

LLaVA's projector reads hidden states that no layer norm has scaled. A few directions in which all tokens are alike
have most of their variance, and what tells things apart has little, so that a projector learns it slowly.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

LEAST_VARIANCE = 1e-4
"""Directions with less variance than this share of the largest are not enlarged further."""


class Whitening:
    """Moves features to a mean of 0 and a covariance of 1.

    Args:
        features: n×d, what the mean and the covariance are taken from.
    """

    def __init__(self, features: Tensor) -> None:
        self.mean = features.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(features.double().T))
        scales = values.clamp(min=LEAST_VARIANCE * float(values[-1])).rsqrt()
        self.matrix = ((vectors * scales) @ vectors.T).float()

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean) @ self.matrix

    @torch.no_grad()
    def fold_into(self, projector: nn.Module) -> None:
        """Change a projector that was trained on whitened features so that it takes features as they are."""
        linear = cast(Any, projector).linear_1
        linear.weight.copy_(linear.weight @ self.matrix)
        linear.bias.sub_(linear.weight @ self.mean)
