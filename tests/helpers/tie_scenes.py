"""Inputs whose picks rounding could decide, and what each solver picks of them on this machine."""

import torch

from eadp import core
from eadp.core.similarity import LazySimilarity

N, K = 36, 20

SOLVERS = ["dpp numba", "dpp torch", "max-min numba", "max-min torch", "cover numba", "cover torch", "cover rows"]


def solve(solver, features, weights, keep):
    selection, backend = solver.split()
    if selection == "cover":
        similarity = LazySimilarity.from_features(features) if backend == "rows" else core.token_similarity(features)
        return core.facility_location(similarity, weights, keep, backend=backend)
    cosine = core.token_cosine(features)
    if selection == "max-min":
        return core.max_min(1 - cosine, keep, backend=backend)
    weights = weights.to(cosine)
    return core.dpp(weights[:, None] * cosine * weights, keep, backend=backend)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights_of(n, seed=5):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)) * 0.9 + 0.1


def moved(x, seed):
    """Each value one float32 up or down."""
    up = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    return torch.nextafter(x, torch.where(up, torch.inf, -torch.inf))


def copies(features, weights):
    """Every token twice: token i and token i + N/2."""
    return torch.cat([features, features]), torch.cat([weights, weights])


def rank_three():
    return (normal(N, 3).double() @ normal(3, 24, seed=1).double()).float(), weights_of(N)


SCENES = {
    "rank 3": rank_three,
    "all equal": lambda: (normal(1, 24).repeat(N, 1), torch.ones(N)),
    "two kinds": lambda: (normal(2, 24)[torch.arange(N) % 3 % 2], torch.where(torch.arange(N) % 3 == 1, 0.7, 0.4)),
    "every token twice": lambda: copies(normal(N // 2, 24), weights_of(N // 2)),
    "alike and twice": lambda: copies(normal(N // 2, 24) * 0.1 + normal(24, seed=3), weights_of(N // 2)),
    "a token and its mirror": lambda: (
        torch.cat([normal(N // 2, 24), normal(N // 2, 24).flip(1)]),
        weights_of(N // 2).repeat(2),
    ),
}


def scenes_on_this_machine():
    return {
        f"{solver}, {scene}": solve(solver, *SCENES[scene](), K).indices.tolist()
        for scene in SCENES
        for solver in SOLVERS
    }
