"""A CUDA graph replays launches on the same buffers: kernels must give the results of what the buffers then hold."""

import pytest
import torch
from helpers.block_batches import make_problem, similarities

pytest.importorskip("triton", reason="Triton is not installed")

from eadp.core.triton import dpp, facility, launch, max_min

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def record(monkeypatch, call):
    """Run `call` and return its result and a function that launches the same kernels on the same buffers again."""
    launches = []

    def run(kernel, grid, arguments, options):
        launches.append((kernel, grid, arguments, options))
        kernel[grid](*arguments, **options)

    monkeypatch.setattr(launch, "run", run)
    result = call()

    def replay():
        for kernel, grid, arguments, options in launches:
            kernel[grid](*arguments, **options)

    return result, replay


@pytest.mark.parametrize("selection", ["facility location", "dpp", "max-min"])
def test_a_replay_with_other_data_gives_their_picks(selection, monkeypatch):
    def problem(first):
        same_sizes = [make_problem(seed, 16) for seed in range(first, first + 60) if seed % 7 < 2]
        return similarities([each for each in same_sizes if len(each.weights) >= 8][:4])

    def trim(batch, n=8, keep=5):
        batch.sizes.fill_(n)
        batch.limits.fill_(keep)
        return batch.matrices[:, :n, :n].contiguous(), batch.weights[:, :n].contiguous(), batch.sizes, batch.limits

    one, other = trim(problem(0)), trim(problem(100))
    buffers = tuple(tensor.clone() for tensor in one)

    def solve(matrices, weights, sizes, limits):
        if selection == "facility location":
            found = facility.solve(matrices, weights, sizes, limits, None, 5, symmetric=True)
            return found.order, found.gains
        if selection == "dpp":
            return dpp.solve_dpp(matrices, sizes, limits, 5)
        return max_min.solve_max_min(matrices, sizes, limits, 5, 2.0**-19)

    expected = solve(*other)
    (order, gains), replay = record(monkeypatch, lambda: solve(*buffers))
    assert order.tolist() != expected[0].tolist()
    for buffer, tensor in zip(buffers, other, strict=True):
        buffer.copy_(tensor)
    gains.zero_()
    replay()
    assert order.tolist() == expected[0].tolist()
    torch.testing.assert_close(gains, expected[1], atol=0, rtol=0)
