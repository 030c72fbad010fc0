"""The training of a language model on scenes of things: LoRA, visual words, and packed questions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.progress import Progress
from transformers import LlamaConfig, LlamaForCausalLM

from eadp.pocket.things.questions import KINDS
from eadp.pocket.things.render import GRID
from eadp.pocket.things.scene import SIGN
from training.language import choose_patches
from training.things import lora, recipe
from training.things.packing import AFTER_IMAGE, BEFORE_ANSWER, BEFORE_IMAGE, END, IGNORED, right_answers
from training.things.reader import EASY, QUESTIONS_PER_SCENE, Reader, draw_questions
from training.things.text import world_tokenizer
from training.things.tower import Tally
from training.things.windows import draw_scenes


@pytest.fixture(scope="module")
def tokenizer():
    return world_tokenizer()


@pytest.fixture(scope="module")
def batch():
    return draw_scenes("validation", 0, 2)


@pytest.fixture
def language_model(tokenizer):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def reader(language_model, tokenizer):
    return Reader(language_model, tokenizer)


def randomize(adapter):
    with torch.no_grad():
        for matrix in adapter.up.values():
            matrix.normal_(std=0.1)


def test_an_attached_lora_gives_what_a_merged_one_gives(reader):
    ids = torch.arange(5)[None] + 300
    with torch.no_grad():
        plain = reader.model(ids).logits
        reader.lora.detach()
        assert torch.equal(reader.model(ids).logits, plain), "B starts at 0"
        randomize(reader.lora)
        reader.lora.attach(reader.model)
        attached = reader.model(ids).logits
        assert not torch.allclose(attached, plain)
        with pytest.raises(ValueError, match="detach them"):
            reader.lora.merge_into(reader.model)
        reader.lora.detach()
        reader.lora.merge_into(reader.model)
        torch.testing.assert_close(reader.model(ids).logits, attached, atol=1e-5, rtol=1e-4)


def test_only_the_lora_and_the_projector_are_trained(reader, batch):
    randomize(reader.lora)
    keep = choose_patches(batch.owners, 40, guided=True)
    losses = reader.losses(reader.projector(torch.randn(2, 40, 160)), keep, batch, KINDS, seed=0)
    losses["answer"].backward()
    assert all(parameter.grad is None for parameter in reader.model.parameters())
    trained = [*reader.lora.parameters(), *reader.projector.parameters()]
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in trained)
    assert len(reader.lora.up) == 2 * 7
    assert next(iter(reader.lora.down.values())).shape == (lora.RANK, 32)


def test_a_packed_question_has_the_logits_that_it_has_alone(reader, batch, tokenizer):
    """Against plain forward passes with one question each and with all visual tokens in their places."""
    randomize(reader.lora)
    rng = np.random.default_rng(0)
    questions = [draw_questions(view, rng, KINDS) for view in batch.views]
    assert [len(asked) for asked in questions] == [QUESTIONS_PER_SCENE] * 2
    everything = torch.arange(GRID * GRID).expand(2, -1)
    visual = reader.noisy_words(batch, everything)
    text = reader.packer.pack(questions)
    embed = reader.model.get_input_embeddings()

    def encode(part):
        return torch.tensor(tokenizer(part, add_special_tokens=False)["input_ids"])

    with torch.no_grad():
        packed = reader.packer.answer_logits(reader.model, visual, everything, text)
        alone, labels = [], []
        for row, asked in enumerate(questions):
            for question in asked:
                prompt, answer = encode(question.text + BEFORE_ANSWER), encode(question.answer + END)
                after = torch.cat((encode(AFTER_IMAGE), prompt, answer))
                hidden = torch.cat((embed(encode(BEFORE_IMAGE)), visual[row], embed(after)))[None]
                logits = reader.model(inputs_embeds=hidden).logits[0]
                alone.append(logits[-len(answer) - 1 : -1])
                labels.append(answer)
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-4, rtol=1e-3)
    assert torch.equal(text.labels[text.labels != IGNORED], torch.cat(labels))


def test_an_answer_is_right_if_all_its_tokens_are(reader, batch, tokenizer):
    rng = np.random.default_rng(1)
    questions = [draw_questions(view, rng, ("reading", "several", "side")) for view in batch.views]
    text = reader.packer.pack(questions)
    labels = text.labels[text.labels != IGNORED]
    logits = F.one_hot(labels, len(tokenizer)).float()
    assert all(all(row) for row in right_answers(logits, text))
    logits[0] = 0
    right = right_answers(logits, text)
    assert [sum(not known for known in row) for row in right] == [1, 0]
    assert right[0][0] is False


def test_visual_words_are_the_names_of_things_and_the_words_of_places(reader, batch):
    scenes = [view.scene for view in batch.views]
    targets = reader.words.targets(scenes, batch.owners)
    row, patch = (int(value) for value in (batch.owners >= 0).nonzero()[0])
    thing = scenes[row].things[batch.owners[row, patch]]
    name = f"{thing.colour} sign {thing.word}" if thing.kind == SIGN else thing.name
    torch.testing.assert_close(targets[row, patch] - reader.words.places[patch], reader.words.embed(name))
    corner, middle = reader.words.places[0], reader.words.places[GRID // 2 * GRID + GRID - 1]
    torch.testing.assert_close(corner, 0.35 * (reader.words.embed("left") + reader.words.embed("top")))
    assert F.cosine_similarity(middle, reader.words.embed("right"), dim=0) > 0.4


def test_the_projector_can_learn_visual_words(reader, batch):
    torch.manual_seed(0)
    features = torch.randn(2, GRID * GRID, 160)
    optimizer = torch.optim.Adam(reader.projector.parameters(), 3e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = reader.projection_loss(features, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_easy_questions_are_of_easy_kinds(batch):
    rng = np.random.default_rng(0)
    assert all(question.kind in EASY for view in batch.views for question in draw_questions(view, rng, EASY))


def test_answers_are_counted_by_kind(reader, batch):
    keep = choose_patches(batch.owners, 40, guided=True)
    tally = Tally()
    with torch.no_grad():
        reader.tally_answers(tally, reader.noisy_words(batch, keep), keep, batch, seed=0)
    assert tally.total["all"] == 2 * QUESTIONS_PER_SCENE == sum(tally.total.values()) / 2
    assert tally.percentages()["all"] == 0


def test_chosen_patches_show_every_thing(batch):
    keep = choose_patches(batch.owners, 40, guided=True)
    for kept, owners in zip(keep, batch.owners, strict=True):
        assert set(owners[kept].tolist()) >= set(owners.tolist()) - {-1}


@pytest.mark.slow
def test_the_stages_after_the_vision_stage_run(language_model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe.smol, "load_language_model", lambda: (language_model, tokenizer))
    for name, value in {"ANSWER_SCENES": 1, "ANSWER_VALIDATION": 2, "PROJECT_BATCH": 2, "CHECKPOINT_EVERY": 1}.items():
        monkeypatch.setattr(recipe, name, value)
    frozen = language_model.model.layers[0].mlp.up_proj.weight.clone()
    with Progress(disable=True) as progress:
        trained = recipe.Recipe(tmp_path, progress, steps=2)
        for stage in ("read", "project", "tune"):
            before = [parameter.clone() for parameter in trained.reader.lora.parameters()]
            getattr(trained, stage)(train=True)
            same = all(map(torch.equal, before, trained.reader.lora.parameters()))
            assert same == (stage == "project")
            assert (tmp_path / f"{stage}.safetensors").exists()
    assert torch.equal(language_model.model.layers[0].mlp.up_proj.weight, frozen)
    lines = [json.loads(line) for line in (tmp_path / "tune.curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2]
    assert "all" in lines[0]
