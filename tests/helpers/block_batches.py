"""Batches of blocks with different sizes and budgets, on which every solver must make the same picks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eadp import core

KINDS = ("random", "clustered", "copies", "exact ties", "zero weights", "low rank", "one kind")


@dataclass(frozen=True)
class Problem:
    """One block: N×d features, N weights, and how many tokens to pick."""

    kind: str
    features: Tensor
    weights: Tensor
    keep: int


def make_problem(seed: int, largest: int) -> Problem:
    """Return a block of at most `largest` tokens; the seed decides its kind, its size and its budget."""
    g = torch.Generator().manual_seed(seed)
    kind = KINDS[seed % len(KINDS)]
    n = int(torch.randint(1, largest + 1, (), generator=g))
    features, weights = torch.randn(n, 12, generator=g), torch.rand(n, generator=g) ** 3
    if kind == "clustered":
        features = torch.randn(3, 12, generator=g)[torch.randint(3, (n,), generator=g)] + 0.1 * features
    elif kind == "copies":
        copied = torch.randint(-(-n // 2), (n,), generator=g)
        features, weights = features[copied], weights[copied]
    elif kind == "exact ties":
        features, weights = torch.randint(0, 2, (n, 4), generator=g).float(), torch.ones(n)
    elif kind == "zero weights":
        weights = weights * (torch.rand(n, generator=g) < 0.4)
        weights[n // 2] = 1
    elif kind == "low rank":
        features = torch.randn(n, 2, generator=g) @ torch.randn(2, 12, generator=g)
    elif kind == "one kind":
        features, weights = features[:1].expand(n, -1).contiguous(), torch.ones(n)
    keep = (1, n, max(1, n // 2))[int(torch.randint(3, (), generator=g))]
    return Problem(kind, features, weights, keep)


@dataclass(frozen=True)
class Batch:
    """Several blocks, padded with zeros to the size of the largest.

    Attributes:
        matrices: B×N×N.
        weights: B×N.
        sizes: B.
        limits: B.
        most: The largest of the limits.
    """

    matrices: Tensor
    weights: Tensor
    sizes: Tensor
    limits: Tensor
    most: int


def stack(matrices: list[Tensor], weights: list[Tensor], limits: list[int]) -> Batch:
    """Pad the matrices and weights of several blocks."""
    sizes = [len(matrix) for matrix in matrices]
    largest = max(sizes)
    padded = matrices[0].new_zeros(len(sizes), largest, largest)
    padded_weights = weights[0].new_zeros(len(sizes), largest)
    for block, (matrix, weight) in enumerate(zip(matrices, weights, strict=True)):
        padded[block, : len(matrix), : len(matrix)] = matrix
        padded_weights[block, : len(weight)] = weight
    as_int32 = (torch.tensor(counts, dtype=torch.int32) for counts in (sizes, limits))
    return Batch(padded, padded_weights, *as_int32, max(limits))


def similarities(problems: list[Problem], dtype: torch.dtype = torch.float32) -> Batch:
    """Return the similarity matrices of several blocks."""
    matrices = [core.token_similarity(each.features).to(dtype) for each in problems]
    return stack(matrices, [each.weights for each in problems], [each.keep for each in problems])
