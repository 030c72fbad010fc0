"""Kernels and distances of all blocks from one product: equal to those from `token_cosine`, and exactly symmetric."""

import pytest
import torch

from eadp import core
from eadp.core.block_layout import BlockLayout

pytest.importorskip("triton", reason="Triton is not installed")

from eadp.core.triton import cosine

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BLOCKS = [slice(2, 39), slice(39, 55), slice(55, 56)]
EQUAL_BLOCKS = [slice(0, 28), slice(28, 56)]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(cosine, "TILE", 16)


def random_features(dtype):
    features = torch.randn(57, 70, generator=torch.Generator().manual_seed(0)).to(dtype)
    features[2 + 5] = 0
    features[2 + 30] = 2 * features[2 + 2]
    return features


@pytest.mark.parametrize("blocks", [BLOCKS, EQUAL_BLOCKS])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_kernels_and_distances(dtype, blocks):
    features, layout = random_features(dtype), BlockLayout.of(blocks, torch.device("cpu"))
    weights = torch.rand(57, generator=torch.Generator().manual_seed(1))
    kernels, distances = cosine.dpp_kernels(features, weights, layout), cosine.distances(features, layout)
    for block, tokens in enumerate(blocks):
        n, own = tokens.stop - tokens.start, weights[tokens].double()
        expected = core.token_cosine(features[tokens])
        for found, wanted in ((kernels, own[:, None] * expected * own), (distances, 1 - expected)):
            matrix = found[block, :n, :n]
            torch.testing.assert_close(matrix, wanted, atol=1e-12, rtol=0)
            assert torch.equal(matrix, matrix.T)
        is_zero = features[tokens].eq(0).all(1)
        assert distances[block, :n, :n].diagonal().tolist() == is_zero.double().tolist()


def test_a_token_that_is_not_finite_leaves_nan():
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    features[3, 1] = torch.inf
    found = cosine.distances(features, BlockLayout.of([slice(0, 20), slice(20, 40)], features.device))
    assert found[0, 3].isnan().all()
    assert found[0, :, 3].isnan().all()
    assert found.isnan().sum() == 39
