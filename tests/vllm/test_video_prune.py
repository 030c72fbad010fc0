"""EVS and VidCom2 keep the same tokens of a clip as vLLM's own functions at the same rate."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor
from vllm.multimodal.video_prune import evs, vidcom2

from eadp.core import VisualTokens
from eadp.methods import EVS, Method, VidCom2

MERGE = 2
"""Patches along each side of a token."""
CLIPS = [(1, 6, 8), (2, 5, 5), (7, 6, 4), (16, 9, 9)]
RATES = [0.1, 0.25, 0.5, 0.75, 0.9, 0.97]


def random_clip(frames: int, rows: int, columns: int, seed: int) -> Tensor:
    """Return (frames·rows·columns)×d features of a clip whose frames change a little from one to the next."""
    generator = torch.Generator().manual_seed(seed)
    shape = (frames, rows * columns, 48)
    steps = torch.randn(shape, generator=generator) * torch.rand(frames, 1, 1, generator=generator)
    return (torch.randn(shape[1:], generator=generator) * 3 + steps.cumsum(0)).flatten(0, 1)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("frames", "rows", "columns"), CLIPS)
@pytest.mark.parametrize(("module", "method"), [(evs, EVS), (vidcom2, VidCom2)], ids=["evs", "vidcom2"])
def test_the_same_tokens_as_vllm(
    module: ModuleType, method: type[Method], frames: int, rows: int, columns: int, rate: float
) -> None:
    features = random_clip(frames, rows, columns, seed=frames)
    size = (frames, rows * MERGE, columns * MERGE)
    theirs = module.compute_retention_mask(features, size, spatial_merge_size=MERGE, q=rate)
    form = {"form": "vllm"} if method is VidCom2 else {}
    selection = method(keep=1 - rate, **form).select(
        VisualTokens(features, None, [(rows, columns)] * frames, is_clip=True)
    )
    assert len(selection) == module.compute_retained_tokens_count(rows * columns, frames, rate)
    assert torch.equal(selection.indices, theirs.flatten().nonzero().flatten())
