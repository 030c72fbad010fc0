"""The training of a language model on scenes of things: LoRA, visual words, and packed questions."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.progress import Progress
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from eadp.models.efficientnet_lite import place_shares
from eadp.models.guides.class_words import class_words
from eadp.pocket.photo import write_visual_words
from eadp.pocket.things.mentions import find_mentions
from eadp.pocket.things.questions import KINDS
from eadp.pocket.things.render import GRID
from eadp.pocket.things.scene import SIGN
from training.language import choose_patches
from training.things import lora, recipe
from training.things.mentions import UNKNOWN, locate
from training.things.packing import CHAT_ML, IGNORED, answer_logits, right_answers
from training.things.photographs import Photographer
from training.things.reader import EASY, MEASURED_PER_SCENE, Reader, describe, draw_questions
from training.things.text import world_tokenizer
from training.things.tower import Tally
from training.things.visual_words import all_names, full_name, named
from training.things.whitening import fold
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
    return Reader(language_model, tokenizer, CHAT_ML)


@pytest.fixture
def adapter(reader):
    """A LoRA that is attached to the language model of `reader`."""
    made = lora.Lora(reader.model)
    made.attach(reader.model)
    return made


def randomize(adapter):
    with torch.no_grad():
        for matrix in adapter.up.values():
            matrix.normal_(std=0.1)


def test_an_attached_lora_gives_what_a_merged_one_gives(reader, adapter):
    ids = torch.arange(5)[None] + 300
    with torch.no_grad():
        plain = reader.model(ids).logits
        adapter.detach()
        assert torch.equal(reader.model(ids).logits, plain), "B starts at 0"
        randomize(adapter)
        adapter.attach(reader.model)
        attached = reader.model(ids).logits
        assert not torch.allclose(attached, plain)
        with pytest.raises(ValueError, match="detach them"):
            adapter.merge_into(reader.model)
        adapter.detach()
        adapter.merge_into(reader.model)
        torch.testing.assert_close(reader.model(ids).logits, attached, atol=1e-5, rtol=1e-4)


def test_only_the_lora_and_the_projector_are_trained(reader, adapter, batch):
    randomize(adapter)
    keep = choose_patches(batch.owners, 40, guided=True)
    questions = [draw_questions(view, np.random.default_rng(0), KINDS, 4) for view in batch.views]
    losses = reader.losses(reader.projector(torch.randn(2, 40, 160)), keep, questions, batch.views)
    losses["answer"].backward()
    assert all(parameter.grad is None for parameter in reader.model.parameters())
    trained = [*adapter.parameters(), *reader.projector.parameters()]
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in trained)
    assert len(adapter.up) == 2 * 7
    assert next(iter(adapter.down.values())).shape == (lora.RANK, 32)


def test_a_packed_question_has_the_logits_that_it_has_alone(reader, adapter, batch, tokenizer):
    """Against plain forward passes with one question each and with all visual tokens in their places."""
    randomize(adapter)
    rng = np.random.default_rng(0)
    questions = [draw_questions(view, rng, KINDS, 4) for view in batch.views]
    assert [len(asked) for asked in questions] == [4] * 2
    everything = torch.arange(GRID * GRID).expand(2, -1)
    visual = reader.noisy_words(batch, everything)
    text = reader.packer.pack(questions, batch.views)
    embed = reader.model.get_input_embeddings()

    def encode(part):
        return torch.tensor(tokenizer(part, add_special_tokens=False)["input_ids"])

    with torch.no_grad():
        (states,) = reader.packer.hidden_states(reader.model, visual, everything, text)
        packed = answer_logits(reader.model, states, text)
        alone, labels = [], []
        for row, asked in enumerate(questions):
            for question in asked:
                prompt, answer = encode(question.text + CHAT_ML.prompt_end), encode(question.answer + CHAT_ML.end)
                after = torch.cat((encode(CHAT_ML.after_image), prompt, answer))
                hidden = torch.cat((embed(encode(CHAT_ML.before_image)), visual[row], embed(after)))[None]
                logits = reader.model(inputs_embeds=hidden).logits[0]
                alone.append(logits[-len(answer) - 1 : -1])
                labels.append(answer)
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-4, rtol=1e-3)
    assert torch.equal(text.labels[text.labels != IGNORED], torch.cat(labels))


def test_an_answer_is_right_if_all_its_tokens_are(reader, batch, tokenizer):
    rng = np.random.default_rng(1)
    questions = [draw_questions(view, rng, ("reading", "several", "side"), 4) for view in batch.views]
    text = reader.packer.pack(questions, batch.views)
    labels = text.labels[text.labels != IGNORED]
    logits = F.one_hot(labels, len(tokenizer)).float()
    assert all(all(row) for row in right_answers(logits, text))
    logits[0] = 0
    right = right_answers(logits, text)
    assert [sum(not known for known in row) for row in right] == [1, 0]
    assert right[0][0] is False


def test_visual_words_are_the_names_of_things_and_the_words_of_places(reader, batch):
    scenes = [view.scene for view in batch.views]
    with torch.no_grad():
        targets = reader.words.targets(*describe(batch))
        embed, places = reader.words.embed, reader.words.places
        for kinds in ("things", "signs"):
            chosen = [
                (row, number, thing)
                for row, scene in enumerate(scenes)
                for number, thing in enumerate(scene.things)
                if (thing.kind == SIGN) == (kinds == "signs") and (batch.owners[row] == number).any()
            ]
            row, number, thing = chosen[0]
            patch = int((batch.owners[row] == number).nonzero()[0])
            outline = torch.tensor([*(c / scenes[row].side for c in thing.centre), max(thing.width, thing.height) / 8])
            name = embed(f"{thing.colour} sign {thing.word}" if kinds == "signs" else thing.name)
            torch.testing.assert_close(targets[row, patch] - places(outline), name)
        corner, side = reader.words.places(torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.5, 0.0]]))
        torch.testing.assert_close(corner, 0.35 * (reader.words.embed("left") + reader.words.embed("top")))
        assert F.cosine_similarity(side, reader.words.embed("right"), dim=0) > 0.4


def test_what_is_learnt_of_places_tells_neighbouring_patches_and_sizes_apart(reader):
    torch.manual_seed(0)
    with torch.no_grad():
        reader.words.precise.weight.normal_()
        near = torch.tensor([[0.5, 0.5, 4.0], [0.5 + 1 / GRID, 0.5, 4.0], [0.5, 0.5, 6.0]])
        one, moved, grown = reader.words.places(near)
    assert (one - moved).norm() > 0.1 * one.norm()
    assert (one - grown).norm() > 0.05 * one.norm()


def test_names_of_things_are_found_in_questions():
    found = find_mentions("Is the Computer mouse left of the red sign, and how many wolves are there?")
    assert [name for *_, name in found] == ["computer mouse", "red sign", "wolf"]
    assert find_mentions("What is the odd one out?") == []


def test_mentions_say_where_the_only_thing_of_a_name_is(reader, batch, tokenizer):
    rng = np.random.default_rng(0)
    questions = [draw_questions(view, rng, ("side", "count", "existence"), 4) for view in batch.views]
    text = reader.packer.pack(questions, batch.views)
    mentioned = [
        (row, name) for row, asked in enumerate(questions) for each in asked for *_, name in find_mentions(each.text)
    ]
    assert len(mentioned) == len(text.mentions) > 0
    for (row, name), (line, column), (count, across, down) in zip(
        mentioned, text.mentions.tolist(), text.located.tolist(), strict=True
    ):
        assert line == row
        assert tokenizer.decode(text.ids[line, column]).strip().lower()[:2] in (name + "s").lower().split()[-1]
        view = batch.views[row]
        same = [index for index in view.noticed if view.names[index] == name]
        assert count == min(len(same), 6)
        if len(same) == 1:
            centre = view.centres[same[0]]
            assert (across, down) == (int(centre[0]) // 8, int(centre[1]) // 8)
        else:
            assert (across, down) == (UNKNOWN, UNKNOWN)
        assert locate(view, name) == (count, across, down)


def test_answers_say_where_the_thing_is_that_they_name(reader, batch):
    rng = np.random.default_rng(0)
    kinds = ("place", "nearest", "side", "existence", "group")
    questions = [draw_questions(view, rng, kinds, 6) for view in batch.views]
    text = reader.packer.pack(questions, batch.views)
    asked = [(row, question) for row, each in enumerate(questions) for question in each]
    assert len(asked) == len(text.answers) == len(text.answered)
    known = 0
    for (row, question), (line, column), place in zip(
        asked, text.answers.tolist(), text.answered.tolist(), strict=True
    ):
        assert line == row
        assert text.labels[line, column] != IGNORED, "the next token is the first of the answer"
        assert text.labels[line, column - 1] == IGNORED
        view = batch.views[row]
        named = [index for index in question.about if view.names[index] == question.answer]
        if len(named) == 1:
            known += 1
            assert place == [int(c) // 8 for c in view.centres[named[0]]]
        else:
            assert place == [UNKNOWN, UNKNOWN]
    assert 0 < known < len(asked)


@pytest.mark.parametrize(("loss", "kinds"), [("mention_loss", ("side", "relation")), ("answer_loss", ("place",))])
def test_pointing_can_be_learnt(reader, batch, loss, kinds):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    text = reader.packer.pack([draw_questions(view, rng, kinds, 4) for view in batch.views], batch.views)
    hidden = torch.randn(*text.ids.shape, 32)
    optimizer = torch.optim.Adam(reader.pointing.parameters(), 3e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(getattr(reader.pointing, loss)(hidden, text))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.3 * losses[0]


def test_a_folded_projector_takes_features_as_they_are(reader):
    torch.manual_seed(0)
    features = torch.randn(500, 160) * torch.logspace(-2, 1, 160) @ torch.randn(160, 160) + 5
    reader.projector.whiten(features)
    white = (features - reader.projector.mean) @ reader.projector.matrix
    assert white.mean(0).abs().max() < 1e-2
    assert torch.cov(white.T).diagonal().max() < 1.1
    folded = deepcopy(reader.projector.projector)
    folded.load_state_dict(fold(reader.projector.state_dict()))
    with torch.no_grad():
        torch.testing.assert_close(folded(features), reader.projector(features), atol=1e-2, rtol=1e-2)


def test_the_projector_can_learn_visual_words(reader, batch):
    torch.manual_seed(0)
    features, described = torch.randn(GRID * GRID, 160), [each[0] for each in describe(batch)]
    optimizer = torch.optim.Adam(reader.projector.parameters(), 3e-3)
    steps = []
    for _ in range(30):
        optimizer.zero_grad()
        steps.append(reader.projection_losses(features, *described))
        sum(steps[-1].values()).backward()
        optimizer.step()
    assert steps[-1]["error"] < 0.8 * steps[0]["error"]
    assert steps[-1]["named"] < 0.8 * steps[0]["named"]


def test_visual_words_without_noise_name_what_they_show(reader, batch):
    """An ideal projector has no error, and is hardly in doubt about a name."""
    torch.nn.init.normal_(reader.model.model.embed_tokens.weight)
    described = [each[0] for each in describe(batch)]
    targets = reader.words.targets(*described)
    reader.projector = torch.nn.Identity()
    losses = reader.projection_losses(targets, *described)
    assert losses["error"] == 0
    assert losses["named"] < 0.1 * reader.projection_losses(targets.roll(100, 0), *described)["named"]


def test_names_are_numbered(batch):
    scenes = [view.scene for view in batch.views]
    numbers = all_names()
    assert list(numbers.values()) == list(range(len(numbers)))
    labels = named(scenes, batch.owners)
    assert (labels == numbers["background"]).equal(batch.owners < 0)
    for row, scene in enumerate(scenes):
        for index, thing in enumerate(scene.things):
            (found,) = labels[row][batch.owners[row] == index].unique().tolist() or [None]
            assert found in (None, numbers[full_name(thing)])


def test_easy_questions_are_of_easy_kinds(batch):
    rng = np.random.default_rng(0)
    assert all(question.kind in EASY for view in batch.views for question in draw_questions(view, rng, EASY, 4))


def test_answers_are_counted_by_kind(reader, batch):
    keep = choose_patches(batch.owners, 40, guided=True)
    tally = Tally()
    with torch.no_grad():
        reader.tally_answers(tally, reader.noisy_words(batch, keep), keep, batch, seed=0)
    assert tally.total["all"] == 2 * MEASURED_PER_SCENE == sum(tally.total.values()) / 2
    assert tally.percentages()["all"] == 0


def test_chosen_patches_show_every_thing(batch):
    keep = choose_patches(batch.owners, 40, guided=True)
    for kept, owners in zip(keep, batch.owners, strict=True):
        assert set(owners[kept].tolist()) >= set(owners.tolist()) - {-1}


@pytest.mark.slow
@pytest.mark.parametrize("model", recipe.MODELS)
def test_the_stages_after_the_vision_stage_run(model, language_model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe.smol, "load_language_model", lambda: (language_model, tokenizer))
    monkeypatch.setattr(recipe, "build_language_model", lambda vocabulary: language_model)
    rates = {"read_lr": 1e-3, "tune_lr": 1e-3}
    small = recipe.AnswerSettings(2, 2, 2, scenes=1, questions=2, wrapped=0.4, accumulate=2, tune_kept=(48,), **rates)
    monkeypatch.setattr(recipe, "SETTINGS", {model: small})
    small_numbers = {"ANSWER_VALIDATION": 2, "CLIP_VALIDATION": 2, "VALIDATION_BATCH": 2}
    for name, value in {**small_numbers, "PROJECT_SCENES": 4, "PROJECT_BATCH": 64, "CHECKPOINT_EVERY": 1}.items():
        monkeypatch.setattr(recipe, name, value)
    base = language_model.model.layers[0].mlp.up_proj.weight.clone()
    with Progress(disable=True) as progress:
        trained = recipe.Recipe(model, tmp_path, progress, steps=2)
        for stage in ("read", "project", "tune", "clips"):
            before = [parameter.clone() for module in trained.answering.values() for parameter in module.parameters()]
            getattr(trained, stage)(train=True)
            after = [parameter for module in trained.answering.values() for parameter in module.parameters()]
            assert all(map(torch.equal, before, after)) == (stage == "project")
            assert (tmp_path / f"{model}-{stage}.safetensors").exists()
    assert torch.equal(language_model.model.layers[0].mlp.up_proj.weight, base) == (model == "smol")
    for stage, measured in (("tune", "all"), ("clips", "scenes")):
        lines = [json.loads(line) for line in (tmp_path / f"{model}-{stage}.curve.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [2]
        assert measured in lines[0]


@pytest.fixture(scope="module")
def photographer():
    return Photographer(torch.randn(1000, 16, generator=torch.Generator().manual_seed(0)))


def test_imaginary_photographs_show_what_their_questions_are_about(photographer):
    drawn = photographer.draw(np.random.default_rng(0), 30, 48, 4)
    assert drawn.classes.shape == (30, 48, 1000)
    assert (drawn.keep.diff() > 0).all()
    names, asked, named = class_words().names, {"yes": 0, "no": 0}, []
    for classes, questions in zip(drawn.classes, drawn.questions, strict=True):
        largest = int(classes.sum(0).argmax())
        for question in questions:
            if question.kind == "naming":
                named.append(question.answer == names[largest])
                continue
            asked[question.answer] += 1
            meant = {number for word in class_words().read(question.text) for number in word.classes}
            named.append(question.answer == "yes" or largest not in meant)
    # The views of some photographs are so unclear that another thing looks likelier.
    assert np.mean(named) > 0.8
    assert min(asked.values()) > 12


def test_the_visual_words_of_photographs_are_those_of_the_model_for_photographs(reader, photographer, tokenizer):
    drawn = photographer.draw(np.random.default_rng(1), 2, 20, 1)
    found = reader.words.of_classes(drawn.classes, drawn.keep)
    projector = nn.Module()
    projector.linear_1, projector.linear_2 = nn.Linear(1006, 32, bias=False), nn.Linear(32, 32, bias=False)
    projector.act = nn.Identity()
    write_visual_words(projector, reader.model.get_input_embeddings(), tokenizer)
    cells = torch.cat((drawn.classes, place_shares((GRID, GRID))[drawn.keep]), -1)
    torch.testing.assert_close(found, projector.linear_2(projector.linear_1(cells)))


def test_photographs_have_losses_and_are_counted_apart(reader, photographer):
    drawn = photographer.draw(np.random.default_rng(2), 2, 20, 3)
    losses = reader.photograph_losses(drawn)
    assert losses["answer"].requires_grad
    assert losses["named"] == losses["found"] == 0
    tally = Tally()
    reader.tally_photographs(tally, drawn)
    assert set(tally.total) == {f"photo_{question.kind}" for each in drawn.questions for question in each}
