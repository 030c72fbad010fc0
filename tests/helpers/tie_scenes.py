"""Inputs on which rounding errors could decide a pick, and what each solver picks on this machine."""

import torch

from eadp import core
from eadp.core.similarity import LazySimilarity

N, K = 36, 20

SOLVERS = ["dpp numba", "dpp torch", "max-min numba", "max-min torch", "cover numba", "cover torch", "cover rows"]


def solve(solver, features, weights, keep):
    """Pick `keep` tokens by one of `SOLVERS`, named "SELECTION BACKEND"; `cover` is facility location."""
    selection, backend = solver.split()
    if selection == "cover":
        similarity = LazySimilarity.from_features(features) if backend == "rows" else core.token_similarity(features)
        return core.facility_location(similarity, weights, keep, backend=backend)
    cosine = core.token_cosine(features)
    if selection == "max-min":
        return core.max_min(1 - cosine, keep, backend=backend)
    weights = weights.to(cosine)
    return core.dpp(weights[:, None] * cosine * weights, keep, backend=backend)


def random_normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_weights(n, seed=5):
    """Return n weights in [0.1, 1]."""
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)) * 0.9 + 0.1


def perturbed(x, seed):
    """Move each value to the next float32 above or below."""
    up = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    return torch.nextafter(x, torch.where(up, torch.inf, -torch.inf))


def duplicated(features, weights):
    """Append a copy of every token: token i + n is a copy of token i."""
    return torch.cat([features, features]), torch.cat([weights, weights])


def rank_three():
    low_rank = random_normal(N, 3).double() @ random_normal(3, 24, seed=1).double()
    return low_rank.float(), random_weights(N)


def all_equal():
    return random_normal(1, 24).repeat(N, 1), torch.ones(N)


def two_kinds():
    kind = torch.arange(N) % 3 == 1
    return random_normal(2, 24)[kind.long()], torch.where(kind, 0.7, 0.4)


def similar_duplicates():
    features = random_normal(N // 2, 24) * 0.1 + random_normal(24, seed=3)
    return duplicated(features, random_weights(N // 2))


def reversed_channels():
    features = random_normal(N // 2, 24)
    return torch.cat([features, features.flip(1)]), random_weights(N // 2).repeat(2)


SCENES = {
    "rank 3": rank_three,
    "all equal": all_equal,
    "two kinds": two_kinds,
    "every token twice": lambda: duplicated(random_normal(N // 2, 24), random_weights(N // 2)),
    "similar tokens, each twice": similar_duplicates,
    "each token and its channels reversed": reversed_channels,
}


def picks_on_this_machine():
    return {
        f"{solver}, {scene}": solve(solver, *SCENES[scene](), K).indices.tolist()
        for scene in SCENES
        for solver in SOLVERS
    }
