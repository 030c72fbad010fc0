"""The similarity of all blocks in one launch: equal to `token_similarity` up to rounding, and exactly symmetric."""

import pytest
import torch

from eadp import core

pytest.importorskip("triton", reason="Triton is not installed")

from eadp.core.triton import similarity

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(similarity, "TILE", 16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_blocks_of_different_sizes(dtype):
    sizes = [37, 16, 1]
    features = torch.randn(3, 37, 70, generator=torch.Generator().manual_seed(0)).to(dtype)
    features[0, 5] = 0
    features[0, 30] = 2 * features[0, 2]
    found = similarity.block_similarity(features, torch.tensor(sizes, dtype=torch.int32))
    for block, n in enumerate(sizes):
        matrix = found[block, :n, :n]
        torch.testing.assert_close(matrix, core.token_similarity(features[block, :n]), atol=5e-7, rtol=0)
        assert torch.equal(matrix, matrix.T)
        assert matrix.diagonal().tolist() == [0.5 if block == 0 and i == 5 else 1.0 for i in range(n)]


def test_a_token_that_is_not_finite_leaves_nan():
    features = torch.randn(2, 20, 8, generator=torch.Generator().manual_seed(0))
    features[0, 3, 1] = torch.inf
    features[1, 7] = 3e38
    found = similarity.block_similarity(features, torch.tensor([20, 20], dtype=torch.int32))
    for block, token in enumerate([3, 7]):
        assert found[block, token].isnan().all()
        assert found[block].isnan().sum() == 39
