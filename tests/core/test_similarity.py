"""Similarity between visual tokens, as a matrix and as rows on demand."""

import pytest
import torch

from eadp import core
from eadp.core.similarity import LazySimilarity


@pytest.mark.parametrize("n", [1, 5, 130, 300, 1100])
def test_similarity_is_the_cosine_mapped_to_the_unit_interval_and_exactly_symmetric(n):
    f = torch.randn(n, 20, generator=torch.Generator().manual_seed(n))
    sim = core.token_similarity(f)
    unit = f.double() / f.double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(sim.double(), (1 + unit @ unit.T) / 2, atol=1e-6, rtol=0)
    assert torch.equal(sim, sim.T)
    assert (sim.diagonal() == 1).all()
    assert sim.min() >= 0
    assert sim.max() <= 1


def test_lazy_rows_equal_those_of_the_matrix():
    f = torch.randn(70, 12, generator=torch.Generator().manual_seed(0))
    f[3] = 0
    some = torch.tensor([0, 3, 69])
    torch.testing.assert_close(LazySimilarity.from_features(f).rows(some), core.token_similarity(f)[some])


def test_a_token_of_zero_norm_has_similarity_one_half_to_every_token():
    f = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    f[2] = 0
    assert (core.token_similarity(f)[2] == 0.5).all()
    assert (core.token_similarity(f)[:, 2] == 0.5).all()


def test_the_matrix_is_built_only_within_its_limit():
    f = torch.randn(100, 4)
    assert isinstance(core.build_similarity(f, 40_000), torch.Tensor)
    assert isinstance(core.build_similarity(f, 39_999), LazySimilarity)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: core.token_similarity(torch.tensor([[1.0, float("inf")]])), r"features\[0, 1\] is inf"),
        (lambda: core.token_similarity(torch.zeros(3)), "one row per token"),
    ],
)
def test_invalid_input_is_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()
