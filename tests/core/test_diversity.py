"""Greedy DPP and max-min selection against slow float64 oracles."""

import numpy as np
import pytest
import torch
from helpers import oracle

from eadp import core

BACKENDS = ["numba", "torch"]


def kernel(n, seed, rank=40):
    g = torch.Generator().manual_seed(seed)
    f = torch.randn(n, rank, generator=g, dtype=torch.float64)
    r = torch.rand(n, generator=g, dtype=torch.float64)
    return r[:, None] * (f @ f.T) * r


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(3))
def test_dpp_picks_maximize_the_determinant(backend, seed):
    assert core.dpp(kernel(30, seed), 12, backend=backend).indices.tolist() == oracle.dpp(kernel(30, seed), 12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dpp_gains_multiply_to_the_determinant(backend):
    k = kernel(25, 7)
    found = core.dpp(k, 8, backend=backend)
    chosen = k[found.indices][:, found.indices]
    assert found.gains.log().sum().item() == pytest.approx(torch.logdet(chosen).item(), rel=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dpp_keeps_the_requested_number_beyond_the_kernel_rank(backend):
    found = core.dpp(kernel(20, 1, rank=4), 15, backend=backend)
    assert len(set(found.indices.tolist())) == 15
    assert found.gains[:4].min() > 1e-6
    assert (found.gains[4:] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keep", [1, 9, 40])
def test_max_min_is_farthest_first(backend, seed, keep):
    points = torch.randn(40, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    distance = torch.cdist(points, points)
    assert core.max_min(distance, keep, backend=backend).indices.tolist() == oracle.max_min(distance, keep)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("select", [core.dpp, core.max_min])
def test_ties_go_to_the_lowest_index(select, backend):
    matrix = torch.eye(5) if select is core.dpp else 1 - torch.eye(5)
    assert select(matrix, 5, backend=backend).indices.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("select", [core.dpp, core.max_min])
def test_one_token(select, backend):
    assert select(torch.ones(1, 1), 1, backend=backend).indices.tolist() == [0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_cosines_have_float64_precision(dtype):
    features = torch.randn(20, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    features[3] = 0
    cosine = core.token_cosine(features)
    assert cosine.dtype == torch.float64
    assert torch.equal(cosine, cosine.T)
    np.testing.assert_allclose(cosine, oracle.cosine(features.double(), features.double()), atol=1e-15)
    assert (cosine[3] == 0).all()


@pytest.mark.parametrize("select", [core.dpp, core.max_min])
@pytest.mark.parametrize(
    ("matrix", "keep", "message"),
    [
        (torch.eye(4), 0, "got 0"),
        (torch.eye(4), 5, "at most the 4 tokens"),
        (torch.ones(3, 4), 1, "square"),
        (torch.full((3, 3), float("nan")), 1, "nan"),
    ],
)
def test_invalid_input_is_rejected(select, matrix, keep, message):
    with pytest.raises(ValueError, match=message):
        select(matrix, keep)
