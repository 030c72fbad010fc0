"""VisionZip's kernels, in Triton's interpreter: for a batch they choose and merge what the CPU does image by image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eadp.core import Selection, TowerAttention, VisualTokens
from eadp.methods import VisionZip
from eadp.methods._visionzip_rows import merge_on_device

pytest.importorskip("triton", reason="Triton is not installed")

from eadp.core.triton import row_merging

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MOSAIC: dict[str, Any] = {"layout": (2, 2)}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that need several tiles and chunks."""
    monkeypatch.setattr(row_merging, "TILE", 16)
    monkeypatch.setattr(row_merging, "CHUNK", 16)


def scene(
    seed: int, grids: list[tuple[int, int]], has_class: bool, tied: bool = False, heads: int = 2, **more: Any
) -> VisualTokens:
    """Random tokens; with ties, scores and keys of few different values."""
    generator = torch.Generator().manual_seed(seed)
    n = sum(rows * columns for rows, columns in grids)
    keys = torch.randn(n, heads, 20, generator=generator)
    scores = torch.rand(n, generator=generator)
    if tied:
        # Keys along the axes, whose cosines are exact, and keys of zeros.
        directions = torch.eye(20)[:5] * torch.tensor([1.0, 2.0, 4.0, 1.0, 0.0])[:, None]
        keys = directions[torch.randint(5, (n,), generator=generator)][:, None].repeat(1, heads, 1)
        scores = torch.randint(3, (n,), generator=generator) / 4
    layer = TowerAttention(22, 24, keys, scores if has_class else None, None if has_class else scores)
    sequence = None
    if "layout" in more:
        first = grids[0][0] * grids[0][1]
        later = torch.randperm(n - first, generator=generator) + first
        sequence = torch.cat([torch.arange(first), later])
    return VisualTokens(
        torch.randn(n, 3, generator=generator),
        None,
        grids,
        attention=[layer],
        tower=torch.randn(n, 5, generator=generator),
        tower_cls=torch.randn(len(grids), 5, generator=generator) if has_class else None,
        sequence=sequence,
        **more,
    )


def assert_same(found: Selection, expected: Selection) -> None:
    assert found.indices.tolist() == expected.indices.tolist()
    assert found.rows.tolist() == expected.rows.tolist()
    torch.testing.assert_close(found.merge, expected.merge)
    assert (found.quotas, found.notes, found.merge_space) == (expected.quotas, expected.notes, expected.merge_space)
    assert found.problem is None


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("has_class", [False, True])
@pytest.mark.parametrize("contextual", [0, 2, 0.4])
def test_images_of_different_sizes_and_blocks(contextual: float, has_class: bool, tied: bool) -> None:
    grids = [[(6, 6)], [(5, 7), (5, 7), (5, 7)], [(3, 3), (8, 5)], [(4, 4)] * 5]
    batch = [
        scene(seed, each, has_class, tied, **(MOSAIC if len(each) == 5 else {})) for seed, each in enumerate(grids)
    ]
    for keep in (0.3, 0.7):
        method = VisionZip(keep=keep, contextual=contextual)
        for found, tokens in zip(method._select_on_device(batch), batch, strict=True):
            assert_same(found, method.select(tokens))


@pytest.mark.parametrize("has_class", [False, True])
def test_blocks_that_keep_all_of_their_tokens(has_class: bool) -> None:
    """Blocks of different sizes share a budget equally, so that a small one may keep everything."""
    batch = [scene(3, [(1, 2), (6, 6)], has_class), scene(4, [(6, 6), (1, 2), (5, 5)], has_class, layout=(1, 2))]
    for keep in (10, 24):
        method = VisionZip(keep=keep)
        selections = method._select_on_device(batch)
        for found, tokens in zip(selections, batch, strict=True):
            assert_same(found, method.select(tokens))


def test_mosaics_in_their_reading_order() -> None:
    batch = [scene(seed, [(3, 3)] * 5, has_class=True, **MOSAIC) for seed in range(3)]
    method = VisionZip(keep=21)
    for found, tokens in zip(method._select_on_device(batch), batch, strict=True):
        assert_same(found, method.select(tokens))
        plain = replace(tokens, sequence=None)
        assert_same(method._select_on_device([plain])[0], method.select(plain))


@pytest.mark.parametrize("where", ["keys", "scores"])
def test_attention_that_is_not_finite_is_reported_when_it_is_read(where: str) -> None:
    tokens = scene(0, [(5, 5)], has_class=False)
    values = tokens.attention[0].keys if where == "keys" else tokens.attention[0].received
    values[3] = torch.nan
    (found,) = VisionZip(keep=8)._select_on_device([tokens])
    with pytest.raises(ValueError, match="NaN or infinity"):
        found.check()


@pytest.mark.parametrize("has_class", [False, True])
def test_torch_operations_merge_alike_where_there_is_no_triton(has_class: bool) -> None:
    for tokens in (scene(1, [(5, 7), (6, 6)], has_class), scene(2, [(4, 4)] * 5, has_class, **MOSAIC)):
        expected = VisionZip(keep=20, contextual=2).select(tokens)
        layer, counts = tokens.attention[0], [2] * len(tokens.grids)
        scores = layer.received if layer.cls is None else layer.cls
        found = merge_on_device(tokens, scores, layer.keys.mean(1), expected.quotas, counts)
        for part, wanted in zip(found, (expected.indices, expected.merge, expected.rows), strict=True):
            torch.testing.assert_close(part, wanted)
