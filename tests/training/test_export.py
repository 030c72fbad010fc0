"""Results of the training become the parts that the package loads."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from eadp.pocket.things import parts
from training.things.export import export
from training.things.text import world_tokenizer


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    world_tokenizer().save_pretrained(folder / "tokenizer")
    names = {
        "vision": ("tower.weight", "clip.weight", "heads.weight", "temperatures.late"),
        "smol-tune": ("lora.down.a", "lora.up.a", "pointing.weight"),
    }
    weights = {stage: {key: torch.full((2,), 1.5) for key in keys} for stage, keys in names.items()}
    weights["smol-tune"] |= {
        "projector.mean": torch.tensor([1.0, 0.0]),
        "projector.matrix": 2 * torch.eye(2),
        "projector.projector.linear_1.weight": torch.tensor([[1.0, 3.0]]),
        "projector.projector.linear_1.bias": torch.tensor([7.0]),
    }
    for stage, tensors in weights.items():
        save_file(tensors, folder / f"{stage}.safetensors")
    return folder


def test_what_only_the_training_needs_stays_behind(results, tmp_path):
    files = export("smol", results, tmp_path / "package")
    assert [file.name for file in files] == ["vision.safetensors", "smol.safetensors"]
    assert parts.load_module("smol", "lora", tmp_path / "package").keys() == {"down.a", "up.a"}
    assert parts.load_module("vision", "tower", tmp_path / "package")["weight"].tolist() == [1.5, 1.5]
    assert (tmp_path / "package" / "tokenizer" / "tokenizer.json").exists()
    for part, module in (("smol", "pointing"), ("vision", "heads")):
        with pytest.raises(ValueError, match=module):
            parts.load_module(part, module, tmp_path / "package")


def test_the_projector_of_the_package_does_not_whiten(results, tmp_path):
    export("smol", results, tmp_path / "package")
    weights = parts.load_module("smol", "projector", tmp_path / "package")
    assert {name: value.tolist() for name, value in weights.items()} == {
        "linear_1.weight": [[2.0, 6.0]],
        "linear_1.bias": [5.0],
    }


def test_a_stage_that_is_not_trained_yet_is_named(results, tmp_path):
    with pytest.raises(FileNotFoundError, match="things-tune"):
        export("things", results, tmp_path / "package")


def test_a_model_that_learnt_clips_is_exported_with_what_it_learnt_last(results, tmp_path):
    weights = load_file(results / "smol-tune.safetensors")
    save_file(weights | {"lora.down.a": torch.full((2,), 4.0)}, results / "smol-clips.safetensors")
    export("smol", results, tmp_path / "package")
    assert parts.load_module("smol", "lora", tmp_path / "package")["down.a"].tolist() == [4.0, 4.0]
