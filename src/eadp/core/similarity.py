"""Similarity between visual tokens: Sim_ij = (1 + cos(f_i, f_j)) / 2, the supplement's "visual similarity rebound"."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.trace import part

DEFAULT_MATRIX_LIMIT = 2 << 30
"""Bytes that an N×N similarity matrix may take; for larger ones, rows are computed on demand."""

SMALL_BLOCK = 256
"""Tokens up to which the CPU multiplies all blocks at once. Larger ones take turns, to stay in its caches."""


def scale_rows(x: Tensor, what: str = "features") -> Tensor:
    """Scale the rows of a matrix to length 1, in float32 or better, without waiting for the device.

    A row of zeros has no direction. It stays zero, so that its cosine with every row is 0. A row that is not finite, or
    whose norm overflows, becomes NaN.

    Args:
        x: N×d, or B×N×d.
        what: Name of the matrix for error messages.

    Returns:
        The same shape.

    Raises:
        ValueError: If `x` is not a matrix or a batch of matrices.
    """
    if x.ndim not in (2, 3):
        raise ValueError(f"{what} must be a matrix with one row per token, got shape {tuple(x.shape)}")
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # A row of zeros stays what it is; norm − norm is NaN where the norm is not finite.
    return x / (norms.clamp_min(torch.finfo(norms.dtype).tiny) + (norms - norms))


def unit_rows(x: Tensor, what: str = "features") -> Tensor:
    """Do as `scale_rows` does, but raise ValueError if the N×d matrix is not finite or the norm of a row overflows."""
    if x.ndim != 2:
        raise ValueError(f"{what} must be a matrix with one row per token, got shape {tuple(x.shape)}")
    unit = scale_rows(x, what)
    if len(unit) and unit.shape[1] and not unit[:, 0].isfinite().all():
        checks.finite(what, x)
        raise ValueError(f"{what} is too large for {unit.dtype}: a row's norm overflows; scale it down")
    return unit


def highest_precision(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device: float64, or float32 where the device has no float64."""
    if device.type in ("mps", "npu"):
        return torch.float32
    if device.type == "xpu" and not torch.xpu.get_device_properties(device).has_fp64:
        return torch.float32
    return torch.float64


def self_similarity(unit_features: Tensor) -> Tensor:
    """Return the similarity of each token to itself (…×N for …×N×d): 1, or 0.5 for a token of zero norm."""
    return torch.where(unit_features.any(dim=-1), 1.0, 0.5).to(unit_features)


@part("similarity")
def token_similarity(features: Tensor) -> Tensor:
    """Compute the similarity matrix Sim_ij = (1 + cos(f_i, f_j)) / 2.

    Args:
        features: N×d.

    Returns:
        N×N in [0, 1], exactly symmetric. The similarity to and from a token of zero norm is 0.5.
    """
    return _similarity_of_unit_rows(unit_rows(features))


@part("similarity")
def block_similarity(features: Tensor, is_token: Tensor | None = None) -> Tensor:
    """Compute the similarity matrix of each of B blocks at once, without waiting for the device.

    Args:
        features: B×N×d.
        is_token: B×N, false where a block is padded. None if no block is.

    Returns:
        B×N×N as by `token_similarity`; NaN for tokens that are not finite or whose norm overflows, 0 where a block is
        padded.
    """
    if features.device.type == "cpu" and features.shape[1] > SMALL_BLOCK:
        similarity = features.new_empty(
            *features.shape[:2], features.shape[1], dtype=torch.promote_types(features.dtype, torch.float32)
        )
        for block, out in zip(features, similarity, strict=True):
            _fill_similarity(out, scale_rows(block))
    else:
        similarity = _similarity_of_unit_rows(scale_rows(features))
    if is_token is not None:
        similarity.mul_(is_token[:, None]).mul_(is_token[:, :, None])
    return similarity


def _similarity_of_unit_rows(x: Tensor) -> Tensor:
    """Compute (1 + x·xᵀ) / 2 for N×d or B×N×d."""
    out = x.new_empty(*x.shape[:-1], x.shape[-2])
    _fill_similarity(out, x)
    return out


def _fill_similarity(out: Tensor, x: Tensor) -> None:
    """Fill `out` with (1 + x·xᵀ) / 2 for N×d or B×N×d."""
    n = x.shape[-2]
    half = torch.full((), 0.5, dtype=x.dtype, device=x.device)
    multiply = torch.addmm if x.ndim == 2 else torch.baddbmm
    # The matrix is symmetric: only the panels right of the diagonal are multiplied, the others are copied. A device
    # multiplies the whole faster than it launches the panels.
    step = max(128, -(-n // 8)) if x.device.type == "cpu" else n
    for start in range(0, n, step):
        end = min(start + step, n)
        panel = out[..., start:end, start:]
        multiply(half, x[..., start:end, :], x[..., start:, :].mT, alpha=0.5, out=panel).clamp_(0, 1)
        corner = panel[..., : end - start]
        corner.copy_(corner.triu() + corner.triu(1).mT)
        if end < n:
            out[..., end:, start:end] = panel[..., end - start :].mT
    diagonal = out.diagonal(dim1=-2, dim2=-1)
    # The old entries tell tokens of zero norm (0.5) from others (almost 1). Adding 0 times them keeps NaN.
    diagonal.copy_(torch.where(diagonal > 0.75, 1.0, 0.5) + 0 * diagonal)


@part("similarity")
def token_cosine(features: Tensor) -> Tensor:
    """Compute the matrix of cosines in float64, for selections that subtract cosines from each other.

    Rounding gives a matrix of float32 cosines full rank, whatever the rank of the features, and the later picks of a
    DPP would depend on nothing else. Rounding of the features themselves does not change the rank.

    Args:
        features: N×d.

    Returns:
        N×N in [−1, 1], exactly symmetric; float32 on Apple GPUs. The cosine to and from a token of zero norm is 0.
    """
    return token_similarity(features.detach().to(highest_precision(features.device))).mul_(2).sub_(1)


def block_cosine(features: Tensor) -> Tensor:
    """Compute `token_cosine` of each of B blocks (B×N×d) at once, without waiting for the device."""
    return block_similarity(features.detach().to(highest_precision(features.device))).mul_(2).sub_(1)


@dataclass(frozen=True)
class LazySimilarity:
    """The matrix of `token_similarity` without the matrix: rows are computed on demand.

    Attributes:
        unit_features: N×d, rows of length 1.
    """

    unit_features: Tensor

    @classmethod
    @part("similarity")
    def from_features(cls, features: Tensor) -> LazySimilarity:
        """Normalize N×d features."""
        return cls(unit_rows(features))

    def __len__(self) -> int:
        return len(self.unit_features)

    @cached_property
    def diagonal(self) -> Tensor:
        """N, the similarity of each token to itself, the largest in its row: 1, or 0.5 for a token of zero norm."""
        return self_similarity(self.unit_features)

    def single_objectives(self, weights: Tensor) -> Tensor:
        """Compute Σ_j w_j · Sim_ij for each token i (N): what it represents alone. Takes N·d steps instead of N²·d."""
        x = self.unit_features
        return 0.5 * (weights.sum() + x @ (x.T @ weights.to(x)))

    @part("similarity")
    def rows(self, indices: Tensor) -> Tensor:
        """Compute len(indices)×N rows, equal to those of `token_similarity` up to rounding."""
        x = self.unit_features
        rows = torch.addmm(x.new_tensor(0.5), x[indices], x.T, alpha=0.5).clamp_(0, 1)
        return rows.scatter_(1, indices[:, None], self.diagonal[indices, None])


def build_similarity(features: Tensor, matrix_limit: int = DEFAULT_MATRIX_LIMIT) -> Tensor | LazySimilarity:
    """Build the N×N similarity matrix if it fits into `matrix_limit` bytes, otherwise a `LazySimilarity`."""
    n, size = len(features), torch.promote_types(features.dtype, torch.float32).itemsize
    return token_similarity(features) if n * n * size <= matrix_limit else LazySimilarity.from_features(features)
