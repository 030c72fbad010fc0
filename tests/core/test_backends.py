"""Which solver runs on which device, and in which precision."""

from types import SimpleNamespace

import pytest
import torch
from helpers.block_batches import make_problem
from helpers.pretend_device import on_device, pretend_device, read

from eadp import core
from eadp.core import backends
from eadp.core.backends import choose_backend, has_fast_float64
from eadp.core.batched import default_precision


@pytest.mark.parametrize(
    ("device", "with_triton", "without"),
    [("cpu", "numba", "numba"), ("cuda", "triton", "torch"), ("xpu", "torch", "torch"), ("mps", "torch", "torch")],
)
def test_auto_takes_the_devices_own_solver(device, with_triton, without, monkeypatch):
    for is_installed, expected in ((True, with_triton), (False, without)):
        monkeypatch.setattr(backends, "has_triton", lambda is_installed=is_installed: is_installed)
        assert choose_backend("auto", torch.device(device)) == expected


def test_a_device_that_torch_gets_from_a_plugin_runs_in_torch_operations():
    assert choose_backend("auto", SimpleNamespace(type="npu")) == "torch"


def test_triton_is_refused_where_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(backends, "has_triton", lambda: True)
    with pytest.raises(ValueError, match="needs tensors on a CUDA or ROCm device, but they are on mps"):
        choose_backend("triton", torch.device("mps"))
    monkeypatch.setattr(backends, "has_triton", lambda: False)
    with pytest.raises(ValueError, match="needs the package triton"):
        choose_backend("triton", torch.device("cuda"))


@pytest.mark.parametrize(
    ("major", "minor", "is_fast"),
    [(8, 0, True), (9, 0, True), (10, 0, True), (8, 6, False), (8, 9, False), (12, 0, False)],
)
def test_graphics_cards_of_nvidia_have_slow_float64(major, minor, is_fast, monkeypatch):
    properties = SimpleNamespace(major=major, minor=minor)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    assert has_fast_float64(torch.device("cuda")) is is_fast
    assert default_precision(torch.device("cuda")) == (torch.float64 if is_fast else torch.float32)


@pytest.mark.parametrize(("name", "is_fast"), [("gfx942:sramecc+", True), ("gfx90a", True), ("gfx1100", False)])
def test_graphics_cards_of_amd_have_slow_float64(name, is_fast, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=name))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert has_fast_float64(torch.device("cuda")) is is_fast


def test_a_device_without_float64_never_gets_any():
    """On MPS, an operation in float64 raises; so does the pretend device here."""
    problem = make_problem(7, 24)
    n, g = len(problem.weights), torch.Generator().manual_seed(0)
    words, half = torch.randn(4, 12, generator=g), n // 2
    blocks, quotas = [slice(0, half), slice(half, n)], [2, 3]
    with pretend_device("mps:0", without_float64=True) as counts:
        features, weights, words_there = on_device((problem.features, problem.weights, words))
        scored = core.relevance(features, words_there, words_there.mean(0), blocks=blocks, wait=False)
        core.smooth_and_polarize(scored.score, [(1, half), (1, n - half)], beta=2.0)
        found = [
            core.cover_blocks(features, weights, blocks, quotas).indices,
            core.max_min_by_quota(features, blocks, quotas, wait=False).indices,
        ]
        core.dpp_by_quota(features, weights, blocks, quotas, wait=False)
    assert not counts.waits, counts.describe()
    expected = core.facility_location_by_quota(problem.features, problem.weights, blocks, quotas).indices.sort().values
    assert read(found[0]).tolist() == expected.tolist()
    assert read(found[1]).tolist() == core.max_min_by_quota(problem.features, blocks, quotas).indices.tolist()
