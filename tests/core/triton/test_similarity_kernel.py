"""The similarity of all blocks in one launch: equal to `token_similarity` up to rounding, and exactly symmetric."""

import pytest
import torch

from eadp import core
from eadp.core.block_layout import BlockLayout

pytest.importorskip("triton", reason="Triton is not installed")

from eadp.core.triton import similarity

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(similarity, "TILE", 16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_blocks_of_different_sizes(dtype):
    blocks = [slice(2, 39), slice(39, 55), slice(55, 56)]
    features = torch.randn(57, 70, generator=torch.Generator().manual_seed(0)).to(dtype)
    features[2 + 5] = 0
    features[2 + 30] = 2 * features[2 + 2]
    found = similarity.block_similarity(features, BlockLayout.of(blocks, features.device))
    for block, tokens in enumerate(blocks):
        n = tokens.stop - tokens.start
        matrix = found[block, :n, :n]
        torch.testing.assert_close(matrix, core.token_similarity(features[tokens]), atol=5e-7, rtol=0)
        assert torch.equal(matrix, matrix.T)
        assert matrix.diagonal().tolist() == [0.5 if block == 0 and i == 5 else 1.0 for i in range(n)]


def test_a_token_that_is_not_finite_leaves_nan():
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    features[3, 1] = torch.inf
    features[27] = 3e38
    found = similarity.block_similarity(features, BlockLayout.of([slice(0, 20), slice(20, 40)], features.device))
    for block, token in enumerate([3, 7]):
        assert found[block, token].isnan().all()
        assert found[block].isnan().sum() == 39
