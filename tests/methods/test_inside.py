"""Methods inside the language model on tensors whose right answer is worked out by hand, and their budgets."""

from __future__ import annotations

import platform
import random
import runpy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from helpers import ROOT
from torch import Tensor

from eadp.core import density_peaks
from eadp.methods import get_method
from eadp.methods.dart import DART, set_order
from eadp.methods.fastv import FastV, fold_weights
from eadp.methods.inside import Cut, InsideMethod, mean_tokens_per_layer, scale_layers, tokens_per_layer
from eadp.methods.pyramiddrop import PyramidDrop
from eadp.methods.sparsevlm import SparseVLM, rater_fit, select_raters


def nothing() -> Tensor:
    return torch.zeros(0, 1)


@dataclass
class Sight:
    """A `LayerView` of given tensors. rows: X×M, the attention of each word; norm: d, by which states are multiplied;
    start: where the first visual token stands, with the words behind the last."""

    visual: Tensor = field(default_factory=nothing)
    text: Tensor = field(default_factory=nothing)
    visual_keys: Tensor = field(default_factory=nothing)
    text_keys: Tensor = field(default_factory=nothing)
    visual_inputs: Tensor = field(default_factory=nothing)
    text_inputs: Tensor = field(default_factory=nothing)
    rows: Tensor = field(default_factory=nothing)
    norm: Tensor = field(default_factory=lambda: torch.ones(1))
    start: int = 0

    @property
    def visual_places(self) -> Tensor:
        return self.start + torch.arange(len(self.visual))

    @property
    def text_places(self) -> Tensor:
        return self.start + len(self.visual) + torch.arange(len(self.text))

    def normed(self, states: Tensor) -> Tensor:
        return states * self.norm

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
    fit = rater_fit(visual, text)
    torch.testing.assert_close(fit, torch.tensor([0.438, 0.151, 0.410]), rtol=0, atol=2e-3)
    assert select_raters(fit).tolist() == [0, 2]
    assert select_raters(torch.ones(3) / 3).tolist() == [0, 1, 2]


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
    """Of 80 tokens 10 are kept and 70 dropped, of which the best ⌊0.3·70⌋ + 1 = 22 become ⌊22/10⌋ + 1 = 3 clusters.

    Scores fall from token 0 to token 79, so 0…9 stay and 10…31 are clustered. Their states are 5, 20 and 0 in turn, so
    all are equally dense, and the first of each kind is a centre: 10, farthest from anything denser, then 11 (15 from
    10) and 12 (5 from 10).
    """
    states = torch.tensor([0.0, 5.0, 20.0])[torch.arange(80) % 3, None].expand(-1, 4)
    sight = Sight(
        visual=states,
        visual_inputs=torch.ones(1, 1),
        text_inputs=torch.ones(1, 1),
        rows=torch.linspace(1, 0.2, 80)[None],
    )
    method = SparseVLM(table=(10, 5, 2))
    cut = method.cuts(80, 32)[0]
    assert cut == Cut(3, 13, merged=3)
    chosen = method.choose(cut, sight)
    assert chosen.indices.tolist() == chosen.rows.tolist() == list(range(13))
    assert torch.equal(chosen.merge[:10], torch.eye(80)[:10])
    for index, size in enumerate((8, 7, 7)):
        weights = chosen.merge[10 + index]
        assert weights.nonzero().flatten().tolist() == list(range(10 + index, 32, 3))
        torch.testing.assert_close(weights[10 + index], torch.tensor(1 / (size + 1e-6)))
    assert method.cluster_dropped(cut, chosen.scores, states).centres.tolist() == [10, 11, 12]
    assert torch.equal(method.choose(cut, sight).merge, chosen.merge)


def test_recycled_rows_come_last_whatever_their_members_are() -> None:
    """The best tokens are the last, 20…29; of the dropped ones 7 are clustered into 1, led by the best of them, 19."""
    sight = Sight(
        visual=torch.arange(30.0)[:, None],
        visual_inputs=torch.ones(1, 1),
        text_inputs=torch.ones(1, 1),
        rows=torch.linspace(0.2, 1, 30)[None],
    )
    chosen = SparseVLM(table=(10, 5, 2)).choose(Cut(3, 11, merged=1), sight)
    assert chosen.rows.tolist() == [*range(20, 30), 19]
    assert chosen.indices.tolist() == [*range(19, 30)]
    assert float((chosen.merge @ sight.visual)[-1, 0]) == pytest.approx(sum(range(13, 20)) / 7)


def test_fold_weights() -> None:
    """Tokens 0 and 3 stay; 1 and 4 point as 0 does, 2 as 3 does, and nothing as 5 does, which stays too."""
    states = torch.tensor([[1.0, 0, 0], [2, 0.1, 0], [0, 3, 0.1], [0, 1, 0], [1, 0, 0.1], [0, 0, 1]])
    found = fold_weights(states, torch.tensor([0, 3, 5]))
    expected = torch.tensor([[0.5, 0.25, 0, 0, 0.25, 0], [0, 0, 0.5, 0.5, 0, 0], [0, 0, 0, 0, 0, 1]])
    torch.testing.assert_close(found, expected)


def test_density_peaks() -> None:
    """On a line: 0, 0.1, 0.2 and 5, 5.2, 5.5 and, alone, 9; three clusters, so densities go by a point and its two
    nearest.

    Mean squares: 0.1: 0.02/3; its neighbours: 0.05/3; 5.2: 0.13/3; 5: 0.29/3; 5.5: 0.34/3; 9: (3.5² + 3.8²)/3 = 8.9.
    The densest is 0.1, with δ = 9, the largest of all distances. 5.2 is 5 from the next denser one, 0.2; then
    0.3·e^(−0.113) = 0.27 makes 5.5 the third centre, before 5 with 0.2·e^(−0.097) = 0.18. 9 joins 5.5.
    """
    points = torch.tensor([0.0, 0.1, 0.2, 5.0, 5.2, 5.5, 9.0])[:, None]
    centres, cluster = density_peaks(points, 3)
    assert centres.tolist() == [1, 4, 5]
    assert cluster.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert sorted(density_peaks(points, 9).centres.tolist()) == list(range(7))
    assert density_peaks(torch.zeros(4, 2), 2).centres.tolist() == [0, 1]


def pivoting(**given: Any) -> Sight:
    """Token 1 and word 1 have the largest L1 key norms; the image stands at 10…14, the words at 15 and 16."""
    tensors: dict[str, Any] = {
        "visual": torch.tensor([[0.8, -0.6], [1.0, 0.0], [-1.0, -1.0], [0.0, 3.0], [-0.6, 0.8]]),
        "text": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "visual_keys": torch.tensor([[1.0, 0.0], [-2.0, 2.0], [1.0, -1.0], [0.0, 1.0], [0.5, 0.5]]),
        "text_keys": torch.tensor([[1.0, 1.0], [-3.0, 0.0]]),
        "start": 10,
    }
    return Sight(**tensors | given)


def test_dart_keeps_what_is_least_like_its_pivots() -> None:
    """One pivot of each kind: the budget of 3 leaves 1 + 2·⌊3/2⌋ = 3. Pivot token 1 stays.

    The pivots stand at 11 and 16, in a set of eight slots at 3 and 0: the word comes first. It is (0, 1), and least
    like it is token 2, at −0.71, before token 0 at −0.6. Token 1 is (1, 0), and least like it of those left is token
    4, at −0.6. By norm token 1 comes first and takes token 2, at −0.71, and the word takes token 0.
    """
    method = DART(keep=3, visual_pivots=1, text_pivots=1)
    (cut,) = method.cuts(5, 32)
    assert cut == Cut(2, 3)
    chosen = method.choose(cut, pivoting())
    assert chosen.order.tolist() == [1, 2, 4]
    assert chosen.indices.tolist() == [1, 2, 4]
    assert replace(method, turn="norm").choose(cut, pivoting()).order.tolist() == [1, 2, 0]


def test_darts_turn_depends_on_where_the_image_stands() -> None:
    """From 6 on, the pivots stand at 7 and 12, in slots 7 and 4; from 8 on at 9 and 14, in slots 1 and 6."""
    method = DART(keep=3, visual_pivots=1, text_pivots=1)
    assert method.find_pivots(pivoting(start=6)).turn.tolist() == [1, 0]
    assert method.find_pivots(pivoting(start=8)).turn.tolist() == [0, 1]


@pytest.mark.skipif(platform.python_implementation() != "CPython", reason="the order of a set is CPython's")
def test_set_order_is_that_of_python() -> None:
    generator = random.Random(0)
    for _ in range(2000):
        places = generator.sample(range(generator.choice((100, 700, 5000))), generator.randint(1, 80))
        assert set_order(places) == list(set(places))


def test_set_order_by_hand() -> None:
    """Eight pivots: 32 slots by the last five bits. 424 and 616 both want slot 8; the later one gets slot 9. 632 finds
    slot 24 taken, so near the end that none of those behind it is looked at: 5·24 + 1 + 632//32 is 12 of 32."""
    assert set_order([452, 467, 119, 424, 613, 611, 626, 616]) == [611, 452, 613, 424, 616, 626, 467, 119]
    assert set_order([568, 99, 393, 250, 633, 617, 632, 615]) == [99, 615, 393, 617, 632, 568, 633, 250]


def test_dart_compares_behind_the_final_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    states, keys = torch.randn(40, 6, generator=generator), torch.randn(40, 4, generator=generator)
    norm = torch.randn(6, generator=generator) * 3
    sight = Sight(visual=states[:30], text=states[30:], visual_keys=keys[:30], text_keys=keys[30:], norm=norm)
    plain = replace(sight, visual=states[:30] * norm, text=states[30:] * norm, norm=torch.ones(1))
    kept = [DART(keep=16).choose(Cut(2, 20), each).indices.tolist() for each in (sight, plain)]
    assert kept[0] == kept[1]
    assert kept[0] != DART(keep=16).choose(Cut(2, 20), replace(sight, norm=torch.ones(1))).indices.tolist()


def test_dart_takes_no_pivots_from_before_the_image() -> None:
    """The view shows all words where none stand behind the image; then the visual pivots take everything."""

    class Before(Sight):
        @property
        def text_places(self) -> Tensor:
            return torch.arange(len(self.text))

    sight = Before(**vars(pivoting()))
    method = DART(keep=3, visual_pivots=2, text_pivots=2, exact=True)
    assert method.find_pivots(sight).text.tolist() == []
    assert len(method.choose(Cut(2, 3), sight)) == 3
    with pytest.raises(ValueError, match="no words after the image"):
        DART(keep=3, visual_pivots=0).choose(Cut(2, 3), sight)


@pytest.mark.parametrize("exact", [False, True])
def test_dart_counts(exact: bool) -> None:
    """V + P·⌊budget/P⌋ by the release, pivots on top; a share is a real number before the division: 23.9/8 gives 2."""
    expected = {128: 128, 100: 100, 4: 4, 1: 1} if exact else {128: 132, 100: 100, 4: 4, 1: 4}
    for keep, left in expected.items():
        assert DART(keep=keep, exact=exact).cuts(576, 32) == (Cut(2, left),)
    assert DART(keep=0.25, exact=exact).cuts(256, 32) == (Cut(2, 64 if exact else 68),)
    assert DART(keep=0.239, exact=exact).cuts(100, 32) == (Cut(2, 24 if exact else 20),)
    assert DART(keep=40, visual_pivots=2, text_pivots=6, exact=exact).cuts(200, 32) == (Cut(2, 40 if exact else 42),)


def test_dart_hands_out_what_eight_pivots_cannot_share() -> None:
    generator = torch.Generator().manual_seed(0)
    states, keys = torch.randn(40, 6, generator=generator), torch.randn(40, 4, generator=generator)
    sight = Sight(visual=states[:30], text=states[30:], visual_keys=keys[:30], text_keys=keys[30:])
    method = DART(keep=9, exact=True)
    pivots = method.find_pivots(sight).visual
    for count in (1, 8, 13, 29, 30):
        chosen = method.choose(Cut(2, count), sight).indices.tolist()
        assert len({*chosen}) == count
        assert {*pivots[:count].tolist()} <= {*chosen}


# Budgets.


def test_fastv_by_layer_mean() -> None:
    """(2·576 + 30·x)/32 = 128 → x = 98.1; = 64 → x = 29.9. The lowest mean is (2·576 + 30·1)/32 = 36.9."""
    for mean, exact in ((128, 98.1), (64, 29.9)):
        (cut,) = FastV(keep=mean, budget="layer_mean").cuts(576, 32)
        assert (mean * 32 - 2 * 576) / 30 == pytest.approx(exact, abs=0.05)
        assert cut == Cut(2, int(exact))
        assert mean_tokens_per_layer([cut], 576, 32) <= mean < mean_tokens_per_layer([Cut(2, cut.keep + 1)], 576, 32)
    with pytest.raises(ValueError, match=r"mean of 32 tokens.*first 2 see all 576.*36\.9"):
        FastV(keep=32, budget="layer_mean").cuts(576, 32)


def test_pyramiddrop_defaults_average_270() -> None:
    """(8·576 + 8·288 + 8·144 + 8·72)/32 = 270."""
    cuts = PyramidDrop().cuts(576, 32)
    assert cuts == (Cut(8, 288), Cut(16, 144), Cut(24, 72))
    assert mean_tokens_per_layer(cuts, 576, 32) == 270
    assert PyramidDrop(keep=72).cuts(576, 32) == cuts
    assert PyramidDrop(keep=0.125).cuts(576, 32) == cuts


def test_pyramiddrop_rounds_down() -> None:
    assert [cut.keep for cut in PyramidDrop().cuts(100, 32)] == [50, 25, 12]
    assert [cut.keep for cut in PyramidDrop(shares=(0.6, 0.3, 0.15)).cuts(256, 32)] == [153, 76, 38]
    assert [cut.keep for cut in PyramidDrop().cuts(3, 32)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "kept", "merged", "mean"),
    [
        (192, (300, 200, 110), (9, 4, 3), 206.5),
        (128, (303, 110, 36), (9, 7, 3), 145.4),
        (96, (238, 48, 26), (11, 7, 1), 114.1),
        (64, (66, 30, 17), (16, 2, 1), 82.3),
    ],
)
def test_sparsevlm_takes_the_published_tables(
    name: int, kept: tuple[int, ...], merged: tuple[int, ...], mean: float
) -> None:
    """A table has its name if a cut's own layer counts as already reduced; in truth its layers process more."""
    method = SparseVLM(keep=name)
    cuts = method.cuts(576, 32)
    assert [cut.layer for cut in cuts] == [3, 7, 16]
    assert tuple(cut.keep - cut.merged for cut in cuts) == kept
    assert tuple(cut.merged for cut in cuts) == merged
    assert mean_tokens_per_layer(cuts, 576, 32) == pytest.approx(mean, abs=0.05)
    assert name <= method.compute_mean(cuts, 576, 32) < name + 1
    assert SparseVLM(table=kept).cuts(576, 32) == cuts
    larger = SparseVLM(keep=name * 5).cuts(2880, 32)
    assert mean_tokens_per_layer(larger, 2880, 32) == pytest.approx(5 * mean, rel=0.02)


def test_sparsevlm_never_keeps_all() -> None:
    """Of 40 tokens no more than 39 are kept, and the other one comes back as a cluster of its own."""
    assert SparseVLM(table=(66, 30, 17)).cuts(40, 32) == (Cut(3, 40, 1), Cut(7, 31, 1), Cut(16, 18, 1))
    assert SparseVLM(table=(66, 30, 17), recycle=0).cuts(40, 32) == (Cut(3, 39), Cut(7, 30), Cut(16, 17))


@pytest.mark.parametrize("mean", [45, 65, 100, 150, 193, 300, 500])
@pytest.mark.parametrize("budget", ["published", "layer_mean"])
def test_sparsevlm_between_the_tables(mean: int, budget: str) -> None:
    mean += 18 if budget == "layer_mean" else 0
    method = SparseVLM(keep=mean, budget=budget)
    cuts = method.cuts(576, 32)
    left = [cut.keep for cut in cuts]
    assert left == sorted(left, reverse=True)
    assert mean - 6 < method.compute_mean(cuts, 576, 32) <= mean
    assert (mean_tokens_per_layer(cuts, 576, 32) > mean) == (budget == "published")
    assert SparseVLM(keep=left[-1], budget="after_prune").cuts(576, 32)[-1].keep == left[-1]


@pytest.mark.parametrize("name", ["fastv", "pyramiddrop", "sparsevlm", "dart"])
@pytest.mark.parametrize("total", [16, 576, 1296])
@pytest.mark.parametrize("depth", [2, 3, 28, 32, 36])
def test_after_prune_is_exact_and_keeping_all_cuts_nothing(name: str, total: int, depth: int) -> None:
    exact = {"exact": True} if name == "dart" else {}
    for keep in (1, 7, total - 1):
        cuts = get_method(name, keep=keep, budget="after_prune", **exact).cuts(total, depth)
        assert cuts[-1].keep == keep
        layers = [cut.layer for cut in cuts]
        assert layers == sorted({*layers})
        assert layers[0] >= 1
        assert layers[-1] < depth
        assert tokens_per_layer(cuts, total, depth)[0] == total
        assert all(cut.merged < cut.keep or cut.merged == 0 for cut in cuts)
    assert get_method(name, keep=total).cuts(total, depth) == ()
    assert get_method(name, keep=total + 5).cuts(total, depth) == ()
    assert get_method(name, keep=1.0).cuts(total, depth) == ()


def test_layers_scale_with_depth() -> None:
    assert scale_layers((8, 16, 24), 28) == (7, 14, 21)
    assert scale_layers((3, 7, 16), 28) == (3, 6, 14)
    assert scale_layers((2,), 36) == (2,)
    assert scale_layers((2,), 80) == (5,)
    assert scale_layers((3, 7, 16), 3) == (1, 1, 2)
    with pytest.raises(ValueError, match="1 layer cannot be cut"):
        scale_layers((2,), 1)


@pytest.mark.parametrize(
    ("make_it", "complaint"),
    [
        (lambda: FastV(keep=4, budget="mean"), "unknown budget 'mean'; known: after_prune, layer_mean"),
        (lambda: FastV(keep=4, budget="published"), "unknown budget 'published'"),
        (lambda: FastV(keep=4, layers=(0,)), "layers must rise from at least 1"),
        (lambda: FastV(keep=4, layers=(4, 4)), "layers must rise"),
        (lambda: FastV(keep=4, layers=(32,)), "below it"),
        (lambda: FastV().cuts(16, 32), "fastv needs keep="),
        (lambda: PyramidDrop(layers=(8, 16)), "2 layers need as many shares"),
        (lambda: PyramidDrop(shares=(0.5, 2, 0.1)), r"shares must lie in \(0, 1\]"),
        (lambda: SparseVLM(keep=4, layers=(2,)), "three cuts"),
        (lambda: SparseVLM(keep=4, recycle=2), r"recycle must lie in \[0, 1\]"),
        (lambda: SparseVLM(keep=4, table=(3, 2, 1)), "either keep or a table"),
        (lambda: SparseVLM(table=(3, 2)), "table must have 3 values"),
        (lambda: SparseVLM(table=(3, 2, 0)), "at least 1"),
        (lambda: SparseVLM().cuts(576, 32), "sparsevlm needs keep="),
        (lambda: DART(keep=4, visual_pivots=0, text_pivots=0), "greater than 0"),
        (lambda: DART(keep=0), "at least 1"),
        (lambda: DART(keep=4, turn="random"), "unknown turn 'random'; known: release, norm"),
    ],
)
def test_wrong_settings_are_told(make_it: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_it()


def test_the_table_in_the_docs_is_what_the_command_prints() -> None:
    table = runpy.run_path(str(ROOT / "benchmarks" / "budgets.py"))["table"]()
    assert table in (ROOT / "docs" / "methods" / "inside.md").read_text()
