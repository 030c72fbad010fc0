"""Launches, waits and copies of the core's functions on a device: none depends on K or on the number of blocks."""

import pytest
import torch
from helpers.pretend_device import on_device, pretend_device, read

from eadp import core
from eadp.core import block_cover
from eadp.core.block_cover import cover_blocks

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # The interpreter multiplies what the kernel masks.

GRID = (2, 3)
CASES = {"one image": 1, "five crops": 5, "64 frames": 64}


def inputs(blocks):
    g = torch.Generator().manual_seed(blocks)
    n = GRID[0] * GRID[1]
    features, words = torch.randn(blocks * n, 8, generator=g), torch.randn(5, 8, generator=g)
    return features, words, [slice(i * n, (i + 1) * n) for i in range(blocks)]


def select(features, words, blocks, keep, backend="auto"):
    """Score the tokens, smooth and sharpen the map, and pick `keep` tokens of each block."""
    scored = core.relevance(features, words, words.mean(0), blocks=blocks, wait=False)
    _, weights = core.smooth_and_polarize(scored.score, [GRID] * len(blocks), beta=2.0)
    return cover_blocks(features, weights, blocks, [keep] * len(blocks), backend=backend).indices


def count(blocks, keep, backend="auto"):
    features, words, ranges = inputs(blocks)
    with pretend_device() as counts:
        indices = select(*on_device((features, words)), ranges, keep, backend)
    scored = core.relevance(features, words, words.mean(0), blocks=ranges)
    _, weights = core.smooth_and_polarize(scored.score, [GRID] * blocks, beta=2.0)
    expected = core.facility_location_by_quota(features, weights, ranges, [keep] * blocks).indices
    assert read(indices).tolist() == expected.sort().values.tolist()
    return counts


@pytest.mark.parametrize("case", CASES)
def test_a_selection_never_waits_for_the_device(case):
    counts = count(CASES[case], 2)
    assert not counts.waits, counts.describe()
    assert counts.launches.total() <= 25, counts.describe()
    # Tables of the blocks' places and sizes are copied to the device once, and then remembered.
    assert counts.copies.total() <= 6, counts.describe()
    assert not count(CASES[case], 2).copies


def test_launches_depend_neither_on_the_budget_nor_on_the_number_of_blocks():
    launches = {(blocks, keep): count(blocks, keep).launches.total() for blocks in (2, 5) for keep in (1, 3)}
    assert len(set(launches.values())) == 1, launches


@pytest.mark.parametrize("blocks", [2, 5])
def test_the_torch_path_has_one_loop_for_all_blocks(blocks):
    one, more = (count(blocks, keep, "torch") for keep in (1, 2))
    assert not more.waits, more.describe()
    per_pick = more.launches.total() - one.launches.total()
    assert per_pick == count(3, 2, "torch").launches.total() - count(3, 1, "torch").launches.total()


@pytest.mark.parametrize("selection", ["dpp", "max-min"])
def test_dpp_and_max_min_never_wait_and_launch_the_same_for_every_budget(selection):
    launches = set()
    for blocks, keep in ((2, 1), (2, 3), (5, 3)):
        features, _, ranges = inputs(blocks)
        weights, quotas = torch.ones(len(features)), [keep] * blocks

        def pick(features, weights, ranges=ranges, quotas=quotas):
            if selection == "dpp":
                return core.dpp_by_quota(features, weights, ranges, quotas, wait=False)
            return core.max_min_by_quota(features, ranges, quotas, wait=False)

        with pretend_device() as counts:
            found = pick(*on_device((features, weights)))
        assert not counts.waits, counts.describe()
        assert read(found.indices).tolist() == pick(features, weights).indices.tolist()
        launches.add(counts.launches.total())
    assert len(launches) == 1, launches


def test_a_value_that_is_read_back_is_counted_as_a_wait(monkeypatch):
    """The control: one `.item()` put into the path, and the test of waits fails and names the line."""
    choose_backend = block_cover.choose_backend
    reads = []

    def read_back(requested, device):
        reads.append(torch.ones(1, device=device).item())
        return choose_backend(requested, device)

    monkeypatch.setattr(block_cover, "choose_backend", read_back)
    counts = count(1, 2)
    assert len(reads) == counts.waits.total() == 1
    assert next(iter(counts.waits)).startswith("core/block_cover.py:")


def test_reading_the_results_of_all_blocks_waits_at_most_twice():
    features, _, ranges = inputs(5)
    weights = torch.rand(len(features), generator=torch.Generator().manual_seed(0))
    with pretend_device() as counts:
        found = core.facility_location_by_quota(*on_device((features, weights)), ranges, [2, 0, 3, 1, 6])
    expected = core.facility_location_by_quota(features, weights, ranges, [2, 0, 3, 1, 6])
    assert counts.waits.total() <= 2, counts.describe()
    assert read(found.indices).tolist() == expected.indices.tolist()
    assert found.coverage == pytest.approx(expected.coverage)
    assert found.bound == pytest.approx(expected.bound)


@pytest.mark.parametrize("sizes", [[64], [40, 40], [48, 30, 41]])
def test_a_selection_takes_little_more_memory_than_the_matrices(sizes):
    """At these small sizes the vectors count for more than at real ones, where they are below 1 %."""
    g = torch.Generator().manual_seed(0)
    features, weights = torch.randn(sum(sizes), 256, generator=g), torch.rand(sum(sizes), generator=g)
    ends = torch.tensor(sizes).cumsum(0).tolist()
    blocks = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    with pretend_device() as counts:
        found = cover_blocks(*on_device((features, weights)), blocks, [2] * len(blocks))
        del found
    matrices = 4 * len(sizes) * max(sizes) ** 2
    vectors = len(sizes) * max(sizes) * (8 + 8 + 4 + 4 + 4 + 4 + 4) + 4096
    assert matrices < counts.memory.peak <= matrices + vectors
    n = 1024
    assert 4 * n * n + n * 36 + 4096 < 1.2 * 4 * n * n
