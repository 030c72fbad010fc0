"""A CUDA graph replays launches on the same buffers: kernels must give the results of what the buffers then hold."""

import pytest
import torch
from helpers.block_batches import make_problem, similarities
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eadp import core

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


class Recorder:
    """Records what a CUDA graph would: kernels and the operators that compute, with the tensors they work on."""

    def __init__(self):
        self.steps, self.is_in_kernel = [], False

    def run(self, kernel, grid, arguments, options):
        self.steps.append(lambda: kernel[grid](*arguments, **options))
        self.is_in_kernel = True  # The interpreter uses operators of its own.
        self.steps[-1]()
        self.is_in_kernel = False

    def replay(self):
        for step in self.steps:
            step()


class RecordOperators(TorchDispatchMode):
    """Runs every operator and records how to run it again into the same memory."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.recorder.is_in_kernel:
            return function(*args, **kwargs)
        assert function not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        out = function(*args, **kwargs)
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in function._schema.returns)
        if not is_view:

            def again():
                for old, new in zip(tree_leaves(out), tree_leaves(function(*args, **kwargs)), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

            self.recorder.steps.append(again)
        return out


@pytest.mark.parametrize("sizes", [[6], [6, 6, 6], [6, 9, 4]])
def test_a_whole_selection_replays_on_other_data(sizes, monkeypatch):
    """Scoring, smoothing and selection as one graph: the second image is scored in the memory of the first."""
    grids = [(1, size) for size in sizes]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    blocks = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def make(seed):
        g = torch.Generator().manual_seed(seed)
        return [torch.randn(sum(sizes), 8, generator=g), torch.randn(5, 8, generator=g), torch.randn(8, generator=g)]

    def select(visual, words, pooled):
        scored = core.relevance(visual, words, pooled, blocks=blocks, backend="triton", wait=False)
        _, weights = core.smooth_and_polarize(scored.score, grids, beta=2.0, backend="triton")
        return core.cover_blocks(visual, weights, blocks, [3] * len(blocks), backend="triton").indices

    one, other = make(0), make(1)
    expected = [select(*each).tolist() for each in (one, other)]  # The tables are on the device from here on.
    assert expected[0] != expected[1]
    recorder = Recorder()
    monkeypatch.setattr(launch, "run", recorder.run)
    buffers = [each.clone() for each in one]
    with RecordOperators(recorder):
        found = select(*buffers)
    assert found.tolist() == expected[0]
    for buffer, tensor in zip(buffers, other, strict=True):
        buffer.copy_(tensor)
    recorder.replay()
    assert found.tolist() == expected[1]
