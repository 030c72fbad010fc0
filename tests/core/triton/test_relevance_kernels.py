"""Stage 1 and smoothing in Triton: what the torch operations compute, up to rounding, for every setting and shape."""

import pytest
import torch

from eadp import core
from eadp.core.types import TextGuide

pytest.importorskip("triton", reason="Triton is not installed")

from eadp.core.triton import launch
from eadp.core.triton import relevance as kernels

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # The interpreter computes what the kernel masks.

WIDTH = 20
MAPS = ("similarity", "entropy", "dispersion", "weights", "dense_score", "global_score", "fused", "score")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(kernels, "TILE", 16)
    monkeypatch.setattr(kernels, "ENTROPY_TOKENS", 16)
    monkeypatch.setattr(kernels, "FUSED_ENTRIES", 128)


def make_inputs(seed, sizes, words, pooled=True, dtype=torch.float32):
    """Return visual tokens, a question of one or several segments, its pooled vectors, and the blocks."""
    g = torch.Generator().manual_seed(seed)
    visual = torch.randn(sum(sizes), WIDTH, generator=g).to(dtype)
    text = [torch.randn(count, WIDTH, generator=g).to(dtype) for count in words]
    vectors = [torch.randn(WIDTH, generator=g).to(dtype) for _ in words] if pooled else None
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return visual, text, vectors, [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def assert_equal(found, expected, tolerance=2e-5):
    for name in MAPS:
        ours, theirs = getattr(found, name), getattr(expected, name)
        if theirs is None:
            assert ours is None
            continue
        assert ours.shape == theirs.shape
        scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
        torch.testing.assert_close(
            ours, theirs, atol=tolerance * scale, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert torch.equal(found.kept, expected.kept)
    assert bool(found.is_constant) == bool(expected.is_constant)
    assert found.notes == expected.notes


def compare(inputs, tolerance=2e-5, **settings):
    visual, text, pooled, blocks = inputs
    # Temperatures at which rounding is not magnified; the released ones follow below.
    scoring = core.Scoring(**{"tau": 0.2, "aggregation": core.Aggregation(gamma=0.3), **settings})
    both = [
        core.relevance(visual, text, pooled, blocks=blocks, scoring=scoring, backend=backend, wait=False)
        for backend in ("triton", "torch")
    ]
    assert_equal(*both, tolerance)
    return both[0]


@pytest.mark.parametrize("sizes", [[36], [25, 25, 25], [9, 40, 1, 16]])
@pytest.mark.parametrize("words", [[5], [1], [7, 3]])
def test_blocks_and_segments_of_any_sizes(sizes, words):
    compare(make_inputs(len(sizes), sizes, words))


@pytest.mark.parametrize("aggregation", kernels.AGGREGATIONS)
@pytest.mark.parametrize("word_count", ["quantile", "floor"])
def test_every_aggregation(aggregation, word_count):
    settings = core.Aggregation(aggregation, gamma=0.3, theta=2.0)
    compare(make_inputs(1, [20, 13], [9]), aggregation=settings, word_count=word_count, q=0.4)


@pytest.mark.parametrize("normalised_over", ["image", "block"])
@pytest.mark.parametrize("lift", [0.0, 1e-6])
def test_both_normalizations(normalised_over, lift):
    compare(make_inputs(2, [20, 13, 7], [6]), normalised_over=normalised_over, lift=lift)


@pytest.mark.parametrize("mu", [0.0, 0.3, 0.5, 0.8, 1.0])
def test_every_balance_of_words_and_pooled_text(mu):
    compare(make_inputs(3, [30], [6]), mu=mu)


def test_words_alone_and_pooled_text_alone():
    compare(make_inputs(4, [18, 6], [6], pooled=False), mu=0.0)
    visual, _, pooled, blocks = make_inputs(4, [18, 6], [6])
    found = compare((visual, [], pooled, blocks))
    assert found.notes == (
        "the question has no words of its own: the pooled text decides alone (μ = 1 instead of 0.5)",
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_precision_of_the_input(dtype):
    compare(make_inputs(5, [20, 13], [6], dtype=dtype))


def test_words_that_are_equal_tie_exactly():
    visual, (text,), pooled, blocks = make_inputs(6, [20, 13], [8])
    text[4:] = text[:4]
    for word_count, kept in (("quantile", 4), ("floor", 3)):
        found = compare((visual, [text], pooled, blocks), q=0.4, word_count=word_count)
        assert found.kept.sum(0).tolist() == [kept, kept]


def test_words_that_rounding_alone_tells_apart_tie():
    visual, (text,), pooled, blocks = make_inputs(6, [20, 13], [8])
    text[4:] = text[:4] * (1 + 2.0**-22 * torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0)))
    found = compare((visual, [text], pooled, blocks), q=0.4)
    assert found.kept.sum(0).tolist() == [4, 4]


def test_the_temperatures_of_the_paper():
    """Where a softmax magnifies rounding by 1/τ and 1/γ, twice."""
    visual, text, pooled, blocks = make_inputs(7, [30, 20], [6])
    found = core.relevance(visual, text, pooled, blocks=blocks, backend="triton")
    expected = core.relevance(visual, text, pooled, blocks=blocks, backend="torch")
    assert_equal(found, expected, 2e-3)


def test_images_with_their_own_questions_take_as_many_launches_as_one(monkeypatch):
    images = [
        make_inputs(seed, sizes, words) for seed, sizes, words in ((8, [20], [5]), (9, [9, 12], [3]), (10, [7], [4, 6]))
    ]
    launches, run = [], launch.run
    monkeypatch.setattr(launch, "run", lambda *each: (launches.append(each[0]), run(*each)))
    scoring = core.Scoring(tau=0.2, aggregation=core.Aggregation(gamma=0.3))
    found = core.relevance_of_images(
        [each[0] for each in images],
        [TextGuide(each[1], each[2]) for each in images],
        blocks=[each[3] for each in images],
        scoring=scoring,
        backend="triton",
    )
    assert len(launches) == 4
    for ours, (visual, text, pooled, blocks) in zip(found, images, strict=True):
        assert_equal(ours, core.relevance(visual, text, pooled, blocks=blocks, scoring=scoring, wait=False))


def test_input_that_is_not_finite_leaves_nan_and_raises_when_it_is_read():
    visual, text, pooled, blocks = make_inputs(11, [20, 13], [6])
    visual[3, 2] = torch.inf
    assert core.relevance(visual, text, pooled, blocks=blocks, backend="triton", wait=False).score.isnan().all()
    with pytest.raises(ValueError, match=r"visual\[3, 2\] is inf"):
        core.relevance(visual, text, pooled, blocks=blocks, backend="triton")


def test_a_constant_map_is_noted():
    _, text, pooled, _ = make_inputs(12, [9], [6])
    found = core.relevance(torch.ones(9, WIDTH), text, pooled, backend="triton")
    assert found.score.tolist() == [1.0] * 9
    assert found.notes == ("the text does not tell the tokens apart: they are covered evenly",)


def test_ablations_without_a_kernel_run_in_torch_operations(monkeypatch):
    monkeypatch.setattr(launch, "run", None)
    for settings in ({"dispersion": "variance"}, {"aggregation": core.Aggregation("topk")}):
        compare(make_inputs(13, [12], [6]), **settings)


@pytest.mark.parametrize("grids", [[(6, 6)], [(4, 5), (4, 5)], [(3, 7), (1, 1), (1, 5), (2, 2)]])
@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_maps_of_any_grids_are_smoothed_and_sharpened(grids, size):
    cells = sum(rows * columns for rows, columns in grids)
    score = torch.rand(cells, generator=torch.Generator().manual_seed(size))
    score[0] = 0
    for beta in (0.0, 0.5, 1.0, 2.0, 5.0):
        both = [core.smooth_and_polarize(score, grids, size, 1.2, beta, backend=each) for each in ("triton", "torch")]
        for ours, theirs in zip(*both, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_smoothing_of_every_precision(dtype):
    score = torch.rand(20, generator=torch.Generator().manual_seed(0)).to(dtype)
    both = [core.smooth_and_polarize(score, [(4, 5)], beta=2.0, backend=each) for each in ("triton", "torch")]
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_a_score_that_is_not_a_number_stays_so():
    score = torch.rand(25, generator=torch.Generator().manual_seed(0))
    score[12] = torch.nan
    for beta in (0.5, 1.0, 2.0):
        smoothed, polarized = core.smooth_and_polarize(score, [(5, 5)], beta=beta, backend="triton")
        assert smoothed.isnan().sum() == polarized.isnan().sum() == 9
