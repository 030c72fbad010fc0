"""The parts of the training recipe: scenes, packed questions, losses, and resuming."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rich.progress import Progress
from torch import nn

from eadp import pocket
from eadp.pocket.model import GRID, build_clip_text, build_llava, encode_patches
from eadp.pocket.text import EOS, SPECIAL
from training import data, distributed, language, optimize, vision


@pytest.fixture(scope="module")
def loaded():
    return pocket.load()


@pytest.fixture(scope="module")
def corpus(loaded, tmp_path_factory):
    with Progress(disable=True) as progress:
        return data.load_corpus(tmp_path_factory.mktemp("scenes"), 8, loaded[1].tokenizer, progress, workers=1)


def test_the_recipe_trains_the_tokenizer_that_ships(loaded):
    assert data.world_tokenizer().get_vocab() == loaded[1].tokenizer.get_vocab()


def test_every_thing_owns_patches(corpus):
    for owners, things in zip(corpus.owners, corpus.things, strict=True):
        present = int((things[:, 0] >= 0).sum())
        assert set(owners.tolist()) == set(range(-1, present))


def test_a_packed_question_has_the_loss_that_it_has_alone(loaded, corpus):
    """The loss of a packed sequence equals that of plain forward passes with one question per pass."""
    model, processor = loaded
    packer = language.Packer(processor.tokenizer)
    rows = np.array([0])
    text = packer.text(corpus, rows, np.random.default_rng(0))
    ids, block, _, labels, *_ = text
    assert block.max() > 3
    images = torch.from_numpy(np.array(corpus.images[rows])).permute(0, 3, 1, 2)
    pixels = processor.image_processor(list(images), return_tensors="pt").pixel_values
    with torch.no_grad():
        visual = model.model.multi_modal_projector(encode_patches(model.model.vision_tower, pixels)[:, 1:])
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


def test_guided_patches_include_every_thing(corpus):
    owners = torch.from_numpy(np.array(corpus.owners)).long()
    keep = language.choose_patches(owners, 24, guided=True)
    assert keep.shape == (8, 24)
    assert (keep.diff(dim=1) > 0).all()
    for kept, shown in zip(keep, owners, strict=True):
        assert set(shown[shown >= 0].tolist()) <= set(shown[kept].tolist())


def test_word_loss_is_zero_for_words_that_name_nothing_and_have_zero_cosines():
    clip, owners = build_clip_text(400), torch.full((1, 6), -1)
    normed = torch.zeros(1, 7, 128)
    questions, pointers = torch.full((1, 1, 5), 20), torch.zeros(1, 1, 5, dtype=torch.long)
    assert vision.word_loss(clip, normed, owners, questions, pointers).item() == pytest.approx(0, abs=1e-6)


def test_orthogonalize_moves_singular_values_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(optimize.orthogonalize(torch.randn(2, 96, 32)))
    assert values.min() > 0.6
    assert values.max() < 1.3


class Interrupted(Exception):
    pass


def test_an_interrupted_stage_ends_with_the_same_weights(tmp_path):
    def run(folder, stop_at=None):
        torch.manual_seed(0)
        module = build_llava(300).model.vision_tower.encoder.layers[0]
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


def _save_average_of_ranks(folder):
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.full((3,), float(distributed.rank()))
    distributed.average_gradients([weight])
    torch.save(weight.grad, folder / f"{distributed.rank()}.pt")


@pytest.mark.slow
def test_workers_average_their_gradients(tmp_path):
    distributed.run(2, _save_average_of_ranks, tmp_path)
    assert all(torch.load(tmp_path / f"{rank}.pt").tolist() == [0.5] * 3 for rank in range(2))


def test_zero_workers_is_an_error():
    with pytest.raises(ValueError, match="at least one worker"):
        distributed.run(0, print)
