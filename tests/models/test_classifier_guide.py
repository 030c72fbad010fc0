"""The guide by the classes of the vision tower: which words point, and where."""

from __future__ import annotations

import pytest
import torch
from helpers import tiny, tiny_photo
from torch import nn
from torch.nn import functional as F

import eadp
from eadp.models.guides import ClassifierGuide, guide_for, shared_guide_for
from eadp.models.guides.class_words import class_words

NAMES = class_words().names


@pytest.fixture(scope="module")
def guide():
    return ClassifierGuide(nn.Linear(8, 1000))


def cells(*shown: str | None) -> torch.Tensor:
    """Probabilities of cells that show things of these classes, or nothing in particular."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(shown), 1000, generator=generator)
    for row, name in zip(logits, shown, strict=True):
        if name is not None:
            row[NAMES.index(name)] += 9
    return F.pad(logits.softmax(-1), (0, 280))


def cosines(guide: ClassifierGuide, question: str, states: torch.Tensor) -> torch.Tensor:
    return F.cosine_similarity(guide.encode(question).tokens[:, None], guide.align(states)[None], dim=-1)


@pytest.mark.parametrize("word", ["zebra", "zebras", "equine", "mammal", "animals"])
def test_a_word_points_at_the_cells_that_show_it(guide, word):
    similarity = cosines(guide, word, cells(None, "zebra", "espresso", None))[0]
    assert similarity.argmax() == 1
    assert similarity[1] > 2 * similarity[[0, 2, 3]].max()


def test_words_for_no_class_are_orthogonal_to_every_cell(guide):
    assert not cosines(guide, "What colour is it", cells(None, "zebra", "espresso")).any()


def test_a_word_for_almost_everything_hardly_points(guide):
    states = cells(None, "zebra", "espresso", None)
    everything, thing = cosines(guide, "object", states)[0], cosines(guide, "zebra", states)[0]
    assert everything.max() - everything.min() < 0.1 * (thing.max() - thing.min())


def test_cells_have_length_one(guide):
    torch.testing.assert_close(guide.align(cells(None, "zebra")).norm(dim=-1), torch.ones(2))


def test_a_cell_that_says_nothing_is_accepted(guide):
    assert guide.align(torch.full((1, 1280), 1 / 1000)).isfinite().all()


def test_the_pooled_vector_has_the_classes_of_all_words(guide):
    encoded = guide.encode("Is the zebra beside the espresso?")
    weights = {NAMES[number]: encoded.pooled[number].item() for number in encoded.pooled[:1000].nonzero().flatten()}
    assert weights == {"zebra": 1.0, "espresso": 1.0}
    assert encoded.words == ("Is", "the", "zebra", "beside", "the", "espresso")
    assert encoded.sign == 1


def test_an_empty_question_points_nowhere(guide):
    encoded = guide.encode("")
    assert encoded.tokens.shape == (0, 1002)
    assert encoded.pooled.nonzero().flatten().tolist() == [1001]


def test_more_classes_than_words_are_refused():
    with pytest.raises(ValueError, match="1000 classes of ImageNet, but the vision tower has 1001"):
        ClassifierGuide(nn.Linear(8, 1001))


def test_the_guide_of_a_model_with_the_tower():
    model, tokenizer = tiny_photo.model(), tiny.tokenizer()
    guide = guide_for(model, tokenizer)
    assert type(guide) is ClassifierGuide
    assert guide.classifier is model.model.vision_tower.classifier
    assert shared_guide_for(model, tokenizer) is shared_guide_for(model, tokenizer)
    assert guide_for(model, tokenizer, sign=-1).sign == -1
    with pytest.raises(ValueError, match="guided by the classes of its vision tower"):
        guide_for(model, tokenizer, checkpoint="some/clip")


def test_the_question_decides_what_eadp_keeps():
    """With the same image, another thing in the question changes the relevance; other function words do not."""
    model, inputs = tiny_photo.model(), tiny_photo.inputs()
    scores = {}
    for question in ("Is there a goldfish?", "Where is the goldfish?", "Is there a hen?"):
        with eadp.attach(model, tiny.tokenizer(), method="eadp", keep=4, question=question) as pruned:
            model(**inputs)
            scores[question] = pruned.last[0].relevance.score
    first, same, other = scores.values()
    torch.testing.assert_close(first, same, rtol=1e-3, atol=1e-3)
    assert (first - other).abs().max() > 0.1
