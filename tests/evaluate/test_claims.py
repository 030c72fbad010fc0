"""The experiments on the paper's claims: what is measured of a question, and what decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eadp import load_pocket
from eadp.core import TextGuide, VisualTokens
from eadp.evaluate.claims import CLAIMS, Asked, Comparison, ask, compare, entropies, measure
from eadp.methods import EADP
from eadp.pocket.samples import samples

GRID = (4, 4)


def asked_about(cells, names_all=True):
    """A question whose first word points at some of 16 tokens, and whose second word points nowhere."""
    inside = torch.zeros(16, dtype=torch.bool)
    inside[list(cells)] = True
    features = torch.eye(17)[:16] + 0.01
    pointing = torch.where(inside, 1.0, -1.0)
    aligned = torch.stack((pointing, torch.ones(16)), 1)
    text = TextGuide(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1.0, 0.5]), ("duck", "the"), sign=1.0)
    tokens, mentioned = VisualTokens(features, aligned, [GRID]), torch.tensor([True, False])
    return Asked(3, False, tokens, text, inside[None], names_all, mentioned)


def test_a_map_that_finds_the_thing_points_and_keeps_its_tokens():
    found = measure(asked_about({5, 6}), {"smoothing": 1, "selection": "topk"}, keep=2)
    assert found == {"tokens": 1.0, "things": 1.0, "pointing": 1.0}


def test_a_thing_counts_if_one_of_its_tokens_stays():
    found = measure(asked_about({5, 6}), {"smoothing": 1, "selection": "topk"}, keep=1)
    assert (found["tokens"], found["things"]) == (0.5, 1.0)


def test_pointing_is_measured_only_where_the_question_names_all_things():
    assert "pointing" not in measure(asked_about({5}, names_all=False), {}, keep=4)


def test_the_word_that_points_has_the_lower_entropy():
    named, other = entropies(asked_about({5, 6}))
    assert named == pytest.approx(np.log(2), abs=0.01)
    assert other == pytest.approx(np.log(16), abs=0.01)


def test_questions_without_other_words_have_no_entropies_to_compare():
    asked = asked_about({5})
    assert entropies(Asked(**{**vars(asked), "mentioned": torch.tensor([True, True])})) is None


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.02, 0.05), "holds"),
        ((0.001, 0.02), "holds"),
        ((-0.05, -0.02), "does not hold"),
        ((-0.004, 0.006), "does not hold"),
        ((0.001, 0.004), "does not hold"),
        ((-0.02, 0.03), "cannot be told"),
        ((-0.02, 0.005), "cannot be told"),
    ],
)
def test_the_interval_decides(interval, verdict):
    assert Comparison(0.5, 0.5, sum(interval) / 2, interval, 100).verdict == verdict


def test_questions_about_one_scene_count_as_one():
    better, worse = [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]
    found = compare(better, worse, [7, 7, 7, 8])
    assert (found.better, found.difference, found.questions) == (0.5, 0.5, 4)


def test_the_two_sides_of_each_claim_are_valid_and_differ():
    for claim in CLAIMS:
        assert EADP(keep=4, **claim.better) != EADP(keep=4, **claim.worse), claim.text


def test_images_and_questions_are_encoded_as_for_pruning():
    model, processor = load_pocket()
    drawn = list(samples("test", 12))
    found = list(ask(model, processor, drawn))
    present = [sample for sample in drawn if sample.boxes]
    assert [asked.scene for asked in found] == [sample.scene for sample in present]
    assert all(len(asked.things) == len(sample.boxes) for asked, sample in zip(found, present, strict=True))
    assert all(len(asked.tokens) == 256 and asked.text.words for asked in found)
