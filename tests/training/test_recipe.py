"""The training recipe's parts: what it draws, how it packs questions, how it resumes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rich.progress import Progress
from torch import nn

from eadp import pocket
from eadp.pocket.model import GRID, new_clip_text, new_llava, see
from eadp.pocket.text import EOS, SPECIAL
from training import data, distributed, language, optimize, vision


@pytest.fixture(scope="module")
def loaded():
    return pocket.load()


@pytest.fixture(scope="module")
def corpus(loaded, tmp_path_factory):
    with Progress(disable=True) as progress:
        return data.corpus(tmp_path_factory.mktemp("scenes"), 8, loaded[1].tokenizer, progress, workers=1)


def test_the_tokenizer_that_ships_is_the_one_that_the_recipe_learns(loaded):
    assert data.world_tokenizer().get_vocab() == loaded[1].tokenizer.get_vocab()


def test_patches_belong_to_what_fills_them(corpus):
    for owners, things in zip(corpus.owners, corpus.things, strict=True):
        present = int((things[:, 0] >= 0).sum())
        assert set(owners.tolist()) == set(range(-1, present))


def test_a_packed_question_gets_the_answer_that_it_gets_alone(loaded, corpus):
    """Same logits with others in the sequence and visual tokens dropped as from a plain forward of the model."""
    model, processor = loaded
    packer = language.Packer(processor.tokenizer)
    rows = np.array([0])
    text = packer.text(corpus, rows, np.random.default_rng(0))
    ids, block, _, labels, *_ = text
    assert block.max() > 3
    images = torch.from_numpy(np.array(corpus.images[rows])).permute(0, 3, 1, 2)
    pixels = processor.image_processor(list(images), return_tensors="pt").pixel_values
    with torch.no_grad():
        visual = model.model.multi_modal_projector(see(model.model.vision_tower, pixels)[:, 1:])
        packed, *_ = packer.loss(model, visual, torch.arange(GRID * GRID)[None], text)
        alone, answered = 0.0, 0
        for number in block.unique():
            own = block[0] == number
            if number == 0 or not own.any():
                continue
            image = torch.full((GRID * GRID,), model.config.image_token_id)
            whole = torch.cat((packer.before, image, torch.tensor([packer.newline]), ids[0, own]))[None]
            logits = model(input_ids=whole, pixel_values=pixels).logits[0, -int(own.sum()) :]
            target = labels[0, own]
            alone += nn.functional.cross_entropy(logits, target, reduction="sum").item()
            answered += int((target != -100).sum())
    assert packed.item() == pytest.approx(alone / answered, abs=1e-4)


def test_questions_end_with_their_answer(loaded, corpus):
    packer = language.Packer(loaded[1].tokenizer)
    ids, block, _, labels, *_ = packer.text(corpus, np.arange(8), np.random.default_rng(1))
    learnt = labels != -100
    assert ((labels == SPECIAL.index(EOS)).sum(1) == torch.tensor([len(b[b > 0].unique()) for b in block])).all()
    shifted = torch.cat((ids[:, 1:], ids[:, :1]), 1)
    assert (shifted[learnt] == labels[learnt]).all()


def test_a_good_choice_of_patches_leaves_something_of_every_thing(corpus):
    owners = torch.from_numpy(np.array(corpus.owners)).long()
    keep = language.choose(owners, 24, guided=True)
    assert keep.shape == (8, 24)
    assert (keep.diff(dim=1) > 0).all()
    for kept, of in zip(keep, owners, strict=True):
        assert set(of[of >= 0].tolist()) <= set(of[kept].tolist())


def test_words_that_point_nowhere_cost_nothing_where_they_are_flat():
    clip, owners = new_clip_text(400), torch.full((1, 6), -1)
    normed = torch.zeros(1, 7, 128)
    questions, pointers = torch.full((1, 1, 5), 20), torch.zeros(1, 1, 5, dtype=torch.long)
    assert vision.word_loss(clip, normed, owners, questions, pointers).item() == pytest.approx(0, abs=1e-6)


def test_newton_schulz_brings_singular_values_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(optimize.orthogonal(torch.randn(2, 96, 32)))
    assert values.min() > 0.6
    assert values.max() < 1.3


class Interrupted(Exception):
    pass


def test_an_interrupted_stage_ends_where_an_uninterrupted_one_does(tmp_path):
    def run(folder, stop_at=None):
        torch.manual_seed(0)
        module = new_llava(300).model.vision_tower.encoder.layers[0]
        wrapped = nn.ModuleDict({"encoder": nn.ModuleDict({"layers": nn.ModuleList([module])})})
        folder.mkdir(exist_ok=True)
        stage = optimize.Stage("try", folder, {"it": wrapped}, steps=6, lr=1e-2)

        def step(number):
            if number == stop_at:
                raise Interrupted
            return {"loss": module(torch.randn(1, 4, 128), attention_mask=None).square().mean()}

        with Progress(disable=True) as progress:
            stage.run(progress, step, every=2)
        return torch.cat([parameter.flatten() for parameter in wrapped.parameters()])

    whole = run(tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", stop_at=5)
    torch.testing.assert_close(run(tmp_path / "cut"), whole)


def _sum_of_ranks(folder):
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.full((3,), float(distributed.rank()))
    distributed.average_gradients([weight])
    torch.save(weight.grad, folder / f"{distributed.rank()}.pt")


@pytest.mark.slow
def test_workers_share_their_gradients(tmp_path):
    distributed.run(2, _sum_of_ranks, tmp_path)
    assert all(torch.load(tmp_path / f"{rank}.pt").tolist() == [0.5] * 3 for rank in range(2))


def test_no_workers_are_refused():
    with pytest.raises(ValueError, match="at least one worker"):
        distributed.run(0, print)
