"""Methods by the tower's attention, on a few tokens whose right answer is worked out by hand from their papers."""

from __future__ import annotations

import pytest
import torch
from hand import directions, rows, same
from torch import Tensor

from eadp.core import (
    TowerAttention,
    VisualTokens,
)
from eadp.methods import make
from eadp.methods.hiprune import HiPrune
from eadp.methods.visionzip import VisionZip


def looked(
    cls: list[float] | None, keys: Tensor, grid: tuple[int, int], received: list[float] | None = None
) -> VisualTokens:
    """keys: N×c, which two heads have as their mean, each far from it."""
    n = len(keys)
    spread = 10 * torch.randn(n, keys.shape[1], generator=torch.Generator().manual_seed(5))
    layer = TowerAttention(
        22,
        24,
        torch.stack([keys + spread, keys - spread], dim=1),
        None if cls is None else torch.tensor(cls),
        None if received is None else torch.tensor(received),
    )
    return VisualTokens(torch.randn(n, 3), None, [grid], attention=[layer])


ATTENTION = [0.1, 0.5, 0.05, 0.2, 0.1, 0.05]
KEYS = directions(0, 45, 10, 90, 80, 100)


def test_visionzip() -> None:
    """4 tokens, half of them contextual: CLS, one dominant patch (token 1), two targets.

    The rest is 0, 2, 3, 4, 5; every ⌊5/2⌋ = 2nd is a target: 0 and 3. By key, token 2 (10°) joins token 0 (0°), tokens
    4 (80°) and 5 (100°) join token 3 (90°). Slots: patches 0, 1, 3, and the first free one, 2; CLS comes first."""
    tokens = looked(ATTENTION, KEYS, (2, 3))
    tokens = VisualTokens(tokens.features, None, tokens.grids, None, tokens.attention, torch.randn(1, 3))
    found = VisionZip(keep=4, contextual=0.5).select(tokens)
    assert found.method == "visionzip"
    assert found.indices.tolist() == [0, 1, 2, 3]
    same(found.merge, rows(7, {6: 1}, {0: 1, 2: 1}, {1: 1}, {3: 1, 4: 0.5, 5: 0.5}))


def test_visionzip_without_cls() -> None:
    """By attention received, tokens 1 and 4 dominate. The rest is 0, 2, 3, 5, targets 0 and 3; 2 joins 0, 5 joins 3."""
    found = VisionZip(keep=4, contextual=0.5).select(looked(None, KEYS, (2, 3), [0.1, 0.3, 0.1, 0.1, 0.3, 0.1]))
    assert found.method == "visionzip (attention received)"
    assert found.indices.tolist() == [0, 1, 3, 4]
    same(found.merge, rows(6, {0: 1, 2: 1}, {1: 1}, {3: 1, 5: 1}, {4: 1}))


def test_visionzip_with_hardly_a_dominant_token() -> None:
    """9 in 10 of 4 are 4 contextual tokens, but CLS stays: 3 targets of 6 patches, every second."""
    tokens = looked(ATTENTION, KEYS, (2, 3))
    tokens = VisualTokens(tokens.features, None, tokens.grids, None, tokens.attention, torch.randn(1, 3))
    found = VisionZip(keep=4, contextual=0.9).select(tokens)
    assert found.indices.tolist() == [0, 1, 2, 4]
    same(found.merge, rows(7, {6: 1}, {0: 1}, {2: 1, 1: 1}, {4: 1, 3: 0.5, 5: 0.5}))


@pytest.mark.parametrize(("dominant", "contextual"), [(27, 5), (54, 10), (108, 20), (162, 30)])
def test_visionzips_splits(dominant: int, contextual: int) -> None:
    """A dominant token is as it was: weights of 1. A target that others joined has 1 for itself and 1 for their
    mean."""
    generator = torch.Generator().manual_seed(0)
    attention = torch.rand(576, generator=generator).tolist()
    tokens = looked(attention, torch.randn(576, 64, generator=generator), (24, 24))
    tokens = VisualTokens(tokens.features, None, tokens.grids, None, tokens.attention, torch.randn(1, 3))
    found = make("visionzip", keep=dominant + contextual).select(tokens)
    assert found.merge is not None
    weights = found.merge.sum(1)
    assert int((weights < 1.5).sum()) == dominant
    assert int((weights > 1.5).sum()) == contextual


def test_prumerge() -> None:
    """4 tokens: one for the rest, and of 3 others round(3/2) = 2 by attention, tokens 2 and 5, and one even: the centre
    of 2×4 tokens, token 1.

    Nearest two unkept by key: to token 1 (0°) tokens 0 (5°) and 4 (350°); to token 2 (90°) tokens 3 (95°) and 7 (80°);
    to token 5 (180°) tokens 6 (175°) and 3 (95°). Each adds its own attention; the rest's token sums all five of
    them."""
    a = [0.05, 0.1, 0.3, 0.06, 0.04, 0.2, 0.07, 0.1]
    tokens = looked(a, directions(5, 0, 90, 95, 350, 180, 175, 80), (2, 4))
    layer = tokens.attention[0]
    flat = TowerAttention(23, 24, layer.keys.mean(1, keepdim=True), layer.cls)
    found = make("prumerge", keep=4, neighbours=2).select(
        VisualTokens(tokens.features, None, tokens.grids, attention=[flat])
    )
    assert found.indices.tolist() == [1, 2, 5, 7]
    unkept = {j: a[j] for j in (0, 3, 4, 6, 7)}
    same(found.merge, rows(8, {1: 1, 0: a[0], 4: a[4]}, {2: 1, 3: a[3], 7: a[7]}, {5: 1, 6: a[6], 3: a[3]}, unkept))


def test_prumerge_replaces_an_even_token_that_is_kept_already() -> None:
    """The centre, token 1, is one of the two by attention (1 and 2): the third is the next by attention, token 5."""
    tokens = looked([0.05, 0.3, 0.3, 0.05, 0.05, 0.1, 0.05, 0.1], torch.randn(8, 4), (2, 4))
    found = make("prumerge", keep=4).select(tokens)
    assert found.indices.tolist() == [1, 2, 5, 7]


def test_prumerge_lets_the_image_decide() -> None:
    """One attention stands out (token 6), so one by attention, one even (the centre, 1), and the rest's."""
    found = make("prumerge").select(looked([0.05] * 6 + [0.65, 0.05], torch.randn(8, 4), (2, 4)))
    assert found.indices.tolist() == [1, 6, 7]


def received(middle: list[float], deep: list[float], grid: tuple[int, int]) -> VisualTokens:
    n = len(middle)
    layers = [
        TowerAttention(layer, 24, torch.zeros(n, 1, 1), received=torch.tensor(row))
        for layer, row in ((9, middle), (22, deep))
    ]
    return VisualTokens(torch.randn(n, 3), None, [grid], attention=layers)


def test_hiprune() -> None:
    """α = 1 and T = 5: one anchor, token 2, at the end of the first of three rows. Its neighbours are 1 and 5; token 3
    comes next in the sequence but lies at the start of the next row. Registers: the deep layer's highest, 8 and 0."""
    middle, deep = [0.0] * 9, [0.3, 0, 0, 0.2, 0, 0, 0.1, 0, 0.4]
    middle[2] = 1
    found = HiPrune(keep=5, alpha=1.0).select(received(middle, deep, (3, 3)))
    assert found.order.tolist() == [2, 1, 5, 8, 0]
    assert found.indices.tolist() == [0, 1, 2, 5, 8]
    assert found.notes == ("tower layers 9 (object) and 22 (deep) of 24",)


def test_hiprune_never_keeps_more_than_its_budget() -> None:
    """α = 1 and T = 8: round(8/5) = 2 anchors with 4 neighbours each are 10; the last two buffers go."""
    middle = [0.0] * 49
    middle[16], middle[32] = 2, 1
    found = HiPrune(keep=8, alpha=1.0).select(received(middle, [0.0] * 49, (7, 7)))
    assert found.order.tolist() == [16, 32, 9, 15, 17, 23, 25, 31]


def test_hiprune_by_default() -> None:
    """round(0.1 · 128 / 5) = round(2.56) = 3 anchors."""
    generator = torch.Generator().manual_seed(0)
    middle, deep = torch.rand(576, generator=generator), torch.rand(576, generator=generator)
    found = HiPrune(keep=128).select(received(middle.tolist(), deep.tolist(), (24, 24)))
    assert found.order[:3].tolist() == middle.topk(3).indices.tolist()
    assert len(found) == 128


def test_layers_scale_with_depth() -> None:
    assert HiPrune(keep=8).vision_layers(24, "llava") == (9, 22)
    assert HiPrune(keep=8).vision_layers(32, "qwen2_5_vl") == (16, 31)
    assert HiPrune(keep=8).vision_layers(48, "llava_onevision") == (18, 46)
    assert HiPrune(keep=8).vision_layers(1, "llava") == (0, 0)
    assert HiPrune(keep=8, object_layer=3, deep_layer=-1).vision_layers(24, "llava") == (3, 23)
    assert VisionZip(keep=8).vision_layers(24, "llava") == (22,)
    assert make("prumerge", keep=8).vision_layers(24, "llava") == (23,)
    assert make("prumerge", keep=8, layer=-2).vision_layers(24, "llava") == (22,)
    with pytest.raises(ValueError, match="layer 24, but the vision tower has 24"):
        HiPrune(keep=8, object_layer=24).vision_layers(24, "llava")


def test_attention_that_is_missing_is_named() -> None:
    tokens = VisualTokens(torch.randn(4, 3), None, [(2, 2)])
    for name in ("visionzip", "prumerge", "hiprune"):
        with pytest.raises(ValueError, match=f"{name} goes by the vision tower's attention"):
            make(name, keep=2).select(tokens)


def test_attention_must_say_what_a_method_goes_by() -> None:
    with pytest.raises(ValueError, match="must say what its tokens received"):
        TowerAttention(0, 24, torch.zeros(4, 1, 1))
    only_cls = TowerAttention(0, 24, torch.zeros(4, 1, 1), cls=torch.rand(4))
    with pytest.raises(ValueError, match="not only what CLS attends to"):
        HiPrune(keep=2).select(VisualTokens(torch.randn(4, 3), None, [(2, 2)], attention=[only_cls] * 2))
