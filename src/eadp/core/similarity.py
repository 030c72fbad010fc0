"""How alike two visual tokens are: Sim_ij = (1 + cos(f_i, f_j)) / 2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.trace import part

DENSE_LIMIT = 2 << 30
"""Bytes that an N×N matrix may take before its rows are computed on the fly."""


def unit_rows(x: Tensor, what: str = "features") -> Tensor:
    """Rows of length one in float32 or better. A row of zeros stays zero: it has no direction, its cosine is 0."""
    if x.ndim != 2:
        raise ValueError(f"{what} must be a matrix with one row a token, got shape {tuple(x.shape)}")
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    if not norms.isfinite().all():
        checks.finite(what, x)
        raise ValueError(f"{what} is too large for {x.dtype}: a row's norm overflows; scale it down")
    return x / norms.masked_fill(norms == 0, 1)


def exact(device: torch.device) -> torch.dtype:
    """What small differences are computed in: float64, but Apple's GPUs have nothing better than float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def own_similarity(unit: Tensor) -> Tensor:
    """N, what a token has with itself: 1, or 0.5 for one of zero norm."""
    return torch.where(unit.any(dim=1), 1.0, 0.5).to(unit)


@part("similarity")
def token_similarity(features: Tensor) -> Tensor:
    """N×N in [0, 1], exactly symmetric, from N×d features. 0.5 from and to a token of zero norm.

    Half of a Gram matrix mirrors the other: panels right of the diagonal are multiplied, the rest is copied.
    """
    x = unit_rows(features)
    n = len(x)
    out = x.new_empty(n, n)
    half = x.new_tensor(0.5)
    step = max(128, -(-n // 8))
    for start in range(0, n, step):
        end = min(start + step, n)
        panel = out[start:end, start:]
        torch.addmm(half, x[start:end], x[start:].T, alpha=0.5, out=panel).clamp_(0, 1)
        corner = panel[:, : end - start]
        corner.copy_(corner.triu() + corner.triu(1).T)
        out[end:, start:end] = panel[:, end - start :].T
    out.diagonal().copy_(own_similarity(x))
    return out


@part("similarity")
def token_cosine(features: Tensor) -> Tensor:
    """N×N cosines in float64, exactly symmetric, from N×d features. 0 from and to a token of zero norm.

    For selections that subtract cosines from each other. Float32 cosines have full rank by their rounding alone, and
    that would choose the later picks of a DPP; rounding of the features leaves the rank as it is.
    """
    return token_similarity(features.detach().to(exact(features.device))).mul_(2).sub_(1)


@dataclass(frozen=True)
class CosineRows:
    """The same N×N similarity where it is too large to hold: rows on demand from the unit features, N×d."""

    unit: Tensor

    @classmethod
    @part("similarity")
    def of(cls, features: Tensor) -> CosineRows:
        return cls(unit_rows(features))

    def __len__(self) -> int:
        return len(self.unit)

    @cached_property
    def own(self) -> Tensor:
        """N, the similarity of each token to itself, which none exceeds: 1, or 0.5 for a token of zero norm."""
        return own_similarity(self.unit)

    @part("similarity")
    def rows(self, indices: Tensor) -> Tensor:
        """len(indices)×N, the same values as `token_similarity` up to rounding."""
        rows = torch.addmm(self.unit.new_tensor(0.5), self.unit[indices], self.unit.T, alpha=0.5).clamp_(0, 1)
        return rows.scatter_(1, indices[:, None], self.own[indices, None])


def similarity_within(features: Tensor, limit: int = DENSE_LIMIT) -> Tensor | CosineRows:
    """`token_similarity` where the matrix fits into `limit` bytes, else its rows on demand."""
    n, size = len(features), torch.promote_types(features.dtype, torch.float32).itemsize
    return token_similarity(features) if n * n * size <= limit else CosineRows.of(features)
