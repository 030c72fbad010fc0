"""Methods inside the language model on tensors whose right answer is worked out by hand, and their budgets."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eadp.core import VisualTokens, density_peaks
from eadp.methods import make
from eadp.methods.dart import DART
from eadp.methods.fastv import FastV
from eadp.methods.inside import Cut, InsideMethod, layer_mean, per_layer, scaled
from eadp.methods.pyramiddrop import PyramidDrop
from eadp.methods.sparsevlm import SparseVLM, raters


def nothing() -> Tensor:
    return torch.zeros(0, 1)


@dataclass
class Sight:
    """A `LayerView` of given tensors. rows: X×M, the attention of each word."""

    visual: Tensor = field(default_factory=nothing)
    text: Tensor = field(default_factory=nothing)
    visual_keys: Tensor = field(default_factory=nothing)
    text_keys: Tensor = field(default_factory=nothing)
    visual_inputs: Tensor = field(default_factory=nothing)
    text_inputs: Tensor = field(default_factory=nothing)
    rows: Tensor = field(default_factory=nothing)

    def attention(self, words: Tensor | None = None) -> Tensor:
        return self.rows[-1:] if words is None else self.rows[words]


@pytest.mark.parametrize("method", [FastV(keep=3), PyramidDrop()])
def test_the_last_word_chooses(method: InsideMethod) -> None:
    """The last word attends 0.1, 0.3, 0.0, 0.3, 0.2: the two of 0.3, then 0.2. The first word has no say."""
    rows = torch.tensor([[0.9, 0.0, 0.9, 0.0, 0.0], [0.1, 0.3, 0.0, 0.3, 0.2]])
    chosen = method.choose(Cut(2, 3), Sight(rows=rows))
    assert chosen.indices.tolist() == [1, 3, 4]
    assert chosen.total == 5
    assert torch.equal(chosen.scores, rows[1])


def test_of_equal_tokens_the_first_stay_and_blindness_is_told() -> None:
    chosen = FastV(keep=2).choose(Cut(2, 2), Sight(rows=torch.zeros(1, 4)))
    assert chosen.indices.tolist() == [0, 1]
    assert "no attention reaches" in chosen.notes[0]


def test_raters_are_the_words_that_fit_the_image_better_than_the_mean_word() -> None:
    """v = (1, 0), (0, 1); t = (2, 0), (0, 0), (1, 1).

    v·t: (2, 0, 1) and (0, 0, 1). Softmax over words: (0.665, 0.090, 0.245) and (0.212, 0.212, 0.576).
    Mean over tokens: (0.438, 0.151, 0.410), whose mean is 1/3: words 0 and 2 rate.
    """
    visual, text = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert raters(visual, text).tolist() == [0, 2]
    assert raters(visual, torch.ones(3, 2)).tolist() == [0, 1, 2]


def test_sparsevlm_averages_over_its_raters() -> None:
    """With the raters 0 and 2 of above, scores are the means of their rows: 0.3, 0.1, 0.35, 0.25."""
    rows = torch.tensor([[0.6, 0.2, 0.1, 0.1], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.6, 0.4]])
    sight = Sight(
        visual=torch.zeros(4, 1),
        visual_inputs=torch.eye(2),
        text_inputs=torch.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 1.0]]),
        rows=rows,
    )
    chosen = SparseVLM(keep=2).choose(Cut(2, 2), sight)
    torch.testing.assert_close(chosen.scores, torch.tensor([0.3, 0.1, 0.35, 0.25]))
    assert chosen.indices.tolist() == [0, 2]
    assert chosen.merge is None


def test_sparsevlm_recycles_the_best_of_the_dropped() -> None:
    """80 tokens, 12 are to be left. 2 come back: dropped are 70, of which the best 21 are clustered into ⌊21/10⌋ = 2.

    Scores fall from token 0 to token 79, so 0…9 stay and 10…30 are clustered. Their states are 0 for even tokens and 5
    for odd ones: two clusters, evens 10…30 (11 of them) and odds 11…29 (10), which stand at their best, 10 and 11.
    """
    states = (torch.arange(80) % 2 * 5.0)[:, None].expand(-1, 3)
    sight = Sight(
        visual=states,
        visual_inputs=torch.ones(1, 1),
        text_inputs=torch.ones(1, 1),
        rows=torch.linspace(1, 0.2, 80)[None],
    )
    chosen = SparseVLM(keep=12).choose(Cut(2, 12), sight)
    assert chosen.indices.tolist() == list(range(12))
    assert chosen.merge is not None
    assert torch.equal(chosen.merge[:10], torch.eye(80)[:10])
    even, odd = chosen.merge[10], chosen.merge[11]
    assert even.nonzero().flatten().tolist() == list(range(10, 31, 2))
    torch.testing.assert_close(even[10::2][:11], torch.full((11,), 1 / 11))
    assert odd.nonzero().flatten().tolist() == list(range(11, 30, 2))
    torch.testing.assert_close(odd.sum(), torch.tensor(1.0))
    again = SparseVLM(keep=12).choose(Cut(2, 12), sight)
    assert torch.equal(again.merge, chosen.merge)


def test_density_peaks() -> None:
    """On a line: 0, 0.1, 0.2 and 5, 5.1, 5.2 and, alone, 9. Of the triples the middle points are densest.

    k = 2. Mean square of the two nearest: 0.1 and 5.1: 0.01; ends of a triple: 0.025; 9: about (3.8² + 3.9²)/2 = 14.8,
    so its density is e^−14.8. The densest point's δ is the distance to the farthest, the other middle's is 5; an end's
    is 0.1. So the middles are the centres, and 9 joins 5.1.
    """
    points = torch.tensor([0.0, 0.1, 0.2, 5.0, 5.1, 5.2, 9.0])[:, None]
    cluster = density_peaks(points, 2, neighbours=2)
    assert len({*cluster[:3].tolist()}) == 1
    assert len({*cluster[3:].tolist()}) == 1
    assert cluster[0] != cluster[3]
    assert density_peaks(points, 7).tolist() == list(range(7))


def test_dart_keeps_what_is_least_like_its_pivots() -> None:
    """One pivot of each kind, three to keep: two for the first pivot, one for the second.

    L1 key norms of the visual tokens: 1, 4, 2, 1, 1, so the visual pivot is token 1, of state (1, 0). Cosines with it:
    token 0: 0.6, 1: 1, 2: −1, 3: 0, 4: −0.8. It keeps 2 and 4. Of the words the second has the larger norm (3 > 2), of
    state (0, 1). Cosines of those left: token 0: 0.8, 1: 0, 3: 1. It keeps 1.
    """
    sight = Sight(
        visual=torch.tensor([[0.6, 0.8], [1.0, 0.0], [-2.0, 0.0], [0.0, 3.0], [-0.8, 0.6]]),
        text=torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        visual_keys=torch.tensor([[1.0, 0.0], [-2.0, 2.0], [1.0, -1.0], [0.0, 1.0], [0.5, 0.5]]),
        text_keys=torch.tensor([[1.0, 1.0], [-3.0, 0.0]]),
    )
    chosen = DART(keep=3, visual_pivots=1, text_pivots=1).choose(Cut(2, 3), sight)
    assert chosen.indices.tolist() == [1, 2, 4]
    assert chosen.order.tolist() == [2, 4, 1]


def test_dart_hands_out_what_eight_pivots_cannot_share() -> None:
    generator = torch.Generator().manual_seed(0)
    states, keys = torch.randn(40, 6, generator=generator), torch.randn(40, 4, generator=generator)
    sight = Sight(visual=states[:30], text=states[30:], visual_keys=keys[:30], text_keys=keys[30:])
    for count in (1, 8, 13, 29):
        chosen = DART(keep=count).choose(Cut(2, count), sight)
        assert len({*chosen.indices.tolist()}) == count


# Budgets.


def test_fastv_by_layer_mean() -> None:
    """(2·576 + 30·x)/32 = 128 → x = 98.1; = 64 → x = 29.9. The lowest mean is (2·576 + 30·1)/32 = 36.9."""
    for mean, exact in ((128, 98.1), (64, 29.9)):
        (cut,) = FastV(keep=mean, budget="layer_mean").cuts(576, 32)
        assert (mean * 32 - 2 * 576) / 30 == pytest.approx(exact, abs=0.05)
        assert cut == Cut(2, int(exact))
        assert layer_mean([cut], 576, 32) <= mean < layer_mean([Cut(2, cut.keep + 1)], 576, 32)
    with pytest.raises(ValueError, match=r"mean of 32 tokens.*first 2 see all 576.*36\.9"):
        FastV(keep=32, budget="layer_mean").cuts(576, 32)


def test_pyramiddrop_defaults_average_270() -> None:
    """(8·576 + 8·288 + 8·144 + 8·72)/32 = 270."""
    cuts = PyramidDrop().cuts(576, 32)
    assert cuts == (Cut(8, 288), Cut(16, 144), Cut(24, 72))
    assert layer_mean(cuts, 576, 32) == 270
    assert PyramidDrop(keep=72).cuts(576, 32) == cuts
    assert PyramidDrop(keep=0.125).cuts(576, 32) == cuts


@pytest.mark.parametrize(
    ("mean", "kept", "actual"),
    [(192, (300, 200, 110), 191.1), (128, (303, 110, 36), 127.7), (64, (66, 30, 17), 63.9)],
)
def test_sparsevlm_takes_the_published_tables(mean: int, kept: tuple[int, ...], actual: float) -> None:
    """The tables count what is kept; with the recycled tokens their means over the layers are the published budgets."""
    method = SparseVLM(keep=mean)
    cuts = method.cuts(576, 32)
    assert [cut.layer for cut in cuts] == [2, 6, 15]
    assert layer_mean(cuts, 576, 32) == pytest.approx(actual, abs=0.05)
    there = [576, *(cut.keep for cut in cuts)]
    assert tuple(method.split(*pair)[0] for pair in pairwise(there)) == kept
    larger = SparseVLM(keep=mean * 5).cuts(2880, 32)
    assert layer_mean(larger, 2880, 32) == pytest.approx(5 * actual, rel=0.02)


@pytest.mark.parametrize("mean", [40, 65, 100, 150, 193, 300, 575])
def test_sparsevlm_between_the_tables(mean: int) -> None:
    cuts = SparseVLM(keep=mean).cuts(576, 32)
    left = [cut.keep for cut in cuts]
    assert left == sorted(left, reverse=True)
    assert mean - 6 < layer_mean(cuts, 576, 32) <= mean
    assert SparseVLM(keep=left[-1], budget="after_prune").cuts(576, 32)[-1].keep == left[-1]


@pytest.mark.parametrize("name", ["fastv", "pyramiddrop", "sparsevlm", "dart"])
@pytest.mark.parametrize("total", [16, 576, 1296])
@pytest.mark.parametrize("depth", [2, 3, 28, 32, 36])
def test_after_prune_is_exact_and_keeping_all_cuts_nothing(name: str, total: int, depth: int) -> None:
    for keep in (1, 7, total - 1):
        cuts = make(name, keep=keep, budget="after_prune").cuts(total, depth)
        assert cuts[-1].keep == keep
        layers = [cut.layer for cut in cuts]
        assert layers == sorted({*layers})
        assert layers[0] >= 1
        assert layers[-1] < depth
        assert per_layer(cuts, total, depth)[0] == total
    assert make(name, keep=total).cuts(total, depth) == ()
    assert make(name, keep=total + 5).cuts(total, depth) == ()
    assert make(name, keep=1.0).cuts(total, depth) == ()


def test_layers_scale_with_depth() -> None:
    assert scaled((8, 16, 24), 28) == (7, 14, 21)
    assert scaled((2, 6, 15), 28) == (2, 5, 13)
    assert scaled((2,), 36) == (2,)
    assert scaled((2,), 80) == (5,)
    assert scaled((2, 6, 15), 3) == (1, 1, 1)
    with pytest.raises(ValueError, match="1 layer cannot be cut"):
        scaled((2,), 1)


@pytest.mark.parametrize(
    ("make_it", "complaint"),
    [
        (lambda: FastV(keep=4, budget="mean"), "unknown budget 'mean'; known: after_prune, layer_mean"),
        (lambda: FastV(keep=4, layers=(0,)), "layers must rise from at least 1"),
        (lambda: FastV(keep=4, layers=(4, 4)), "layers must rise"),
        (lambda: FastV(keep=4, layers=(32,)), "below it"),
        (lambda: FastV().cuts(16, 32), "fastv needs keep="),
        (lambda: PyramidDrop(layers=(8, 16)), "2 layers need as many shares"),
        (lambda: PyramidDrop(shares=(0.5, 2, 0.1)), r"shares must lie in \(0, 1\]"),
        (lambda: SparseVLM(keep=4, layers=(2,)), "three cuts"),
        (lambda: SparseVLM(keep=4, recycle=2), r"recycle must lie in \[0, 1\]"),
        (lambda: DART(keep=4, visual_pivots=0, text_pivots=0), "greater than 0"),
        (lambda: DART(keep=0), "at least 1"),
    ],
)
def test_wrong_settings_are_told(make_it: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_it()


def test_there_is_nothing_to_select_before_the_language_model() -> None:
    with pytest.raises(TypeError, match="inside the language model"):
        FastV(keep=1).select(VisualTokens(torch.ones(4, 2), None, [(2, 2)]))


def test_the_table_in_the_docs_is_what_the_command_prints() -> None:
    root = Path(__file__).parents[1]
    table = runpy.run_path(str(root / "benchmarks" / "budgets.py"))["table"]()
    assert table in (root / "docs" / "methods-inside.md").read_text()
