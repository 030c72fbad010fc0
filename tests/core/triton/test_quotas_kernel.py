"""The kernel that splits budgets over blocks, against the CPU's `allocate`."""

import random

import pytest
import torch

from eadp import core
from eadp.core.triton.quotas import split


@pytest.mark.parametrize("seed", range(6))
def test_quotas_are_those_of_the_cpu(seed):
    generator, torch_generator = random.Random(seed), torch.Generator().manual_seed(seed)
    images = []
    for kind in ("random", "sharp", "zero", "equal"):
        sizes = [generator.randint(1, 9) for _ in range(generator.randint(1, 7))]
        maps = [torch.rand(size, generator=torch_generator) for size in sizes]
        if kind == "sharp":
            maps = [each**8 for each in maps]
        if kind in ("zero", "equal"):
            maps = [torch.full_like(each, float(kind == "equal")) for each in maps]
        images.append((maps, sizes, generator.randint(1, sum(sizes))))
    expected = [quota for maps, _, budget in images for quota in core.allocate(maps, budget)]
    sums = torch.stack([each.double().sum() for maps, _, _ in images for each in maps])
    sizes = torch.tensor([size for _, each, _ in images for size in each], dtype=torch.int32)
    found = split(sums, sizes, [len(each) for _, each, _ in images], [budget for *_, budget in images])
    assert found.tolist() == expected
