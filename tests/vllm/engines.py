"""The same prompts through both engines: vLLM with the plugin, and transformers under `eadp.attach`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import eadp
from eadp.models.guides import guide_for
from eadp.models.llava_video import convert
from eadp.serve import ARCHITECTURES

ANSWER = 8
"""Tokens of an answer."""


@dataclass(frozen=True)
class Ask:
    """One prompt: the turns of a conversation, with images and clips in the first, and how to prune it ({}: as the
    server does). A clip is F×h×w×3."""

    images: tuple[Image.Image, ...]
    turns: tuple[str, ...]
    eadp: dict[str, Any] = field(default_factory=dict)
    clips: tuple[np.ndarray, ...] = ()

    @property
    def media(self) -> dict[str, list[Any]]:
        """By modality."""
        return {name: list(each) for name, each in (("image", self.images), ("video", self.clips)) if each}


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Noise in coarse cells, so that resizing leaves something of it."""
    cells = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize((width, height), Image.Resampling.NEAREST)


def clip(seed: int, frames: int, width: int = 56, height: int = 40) -> np.ndarray:
    return np.stack([np.asarray(picture(1000 * seed + frame, width, height)) for frame in range(frames)])


class Transformers:
    """The library's own path, in the environment of vLLM."""

    def __init__(self, folder: Path, guide: str | None = None, llava_video: bool = False) -> None:
        """guide, llava_video: as the server's settings."""
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor = AutoProcessor.from_pretrained(folder)
        if llava_video:
            convert(self.model, self.processor)
        self.guide = guide and guide_for(self.model, self.processor, guide)
        # The pocket model would keep its positions, which the engine cannot: see docs/guides/serving.md.
        self.positions = None if self.model.config.model_type.startswith("qwen") else "renumber"

    def prompt(self, ask: Ask) -> str:
        conversation = [
            {"role": "assistant", "content": turn} if number % 2 else {"role": "user", "content": _parts(ask, number)}
            for number, turn in enumerate(ask.turns)
        ]
        return self.processor.apply_chat_template(conversation, add_generation_prompt=True)

    def inputs(self, ask: Ask) -> Any:
        media = {f"{name}s": each for name, each in ask.media.items()}
        return self.processor(text=self.prompt(ask), return_tensors="pt", **media)

    def answer(self, ask: Ask, server: dict[str, Any]) -> tuple[list[int], list[list[int]], int]:
        """The ids of the answer, which tokens of each image stayed, and how long the pruned prompt was."""
        settings = {"method": "eadp", **server, **ask.eadp}
        question = settings.pop("question", None)
        if "preset" in settings:
            settings["rounding"] = "exact"  # The engine must know the count.
        inputs = self.inputs(ask)
        settings.setdefault("positions", self.positions)
        with eadp.attach(self.model, self.processor, question=question, guide=self.guide, **settings) as pruned:
            out = self.model.generate(
                **inputs, max_new_tokens=ANSWER, min_new_tokens=ANSWER, do_sample=False, eos_token_id=None
            )
            kept = [selection.indices.tolist() for selection in pruned.last]
            length = int(pruned.columns.sum())
        return out[0, inputs["input_ids"].shape[1] :].tolist(), kept, length


def _parts(ask: Ask, number: int) -> list[dict[str, str]]:
    media = [{"type": name} for name, each in ask.media.items() for _ in each] if number == 0 else []
    return [*media, {"type": "text", "text": ask.turns[number]}]


class Engine:
    """vLLM in a process of its own, with prompts short enough to be cut into chunks."""

    def __init__(self, folder: Path, server: dict[str, Any], **settings: Any) -> None:
        from transformers import AutoConfig
        from vllm import LLM

        family = AutoConfig.from_pretrained(folder).model_type
        modalities = ("image", "video") if family == "llava_onevision" else ("image",)
        self.llm = LLM(
            str(folder),
            enforce_eager=True,
            dtype="float32",
            block_size=32,
            max_model_len=2048,
            limit_mm_per_prompt=dict.fromkeys(modalities, 2),
            hf_overrides={"architectures": [ARCHITECTURES[family]], "eadp": server},
            **settings,
        )

    def answers(self, prompts: Sequence[str], asks: Sequence[Ask]) -> list[Any]:
        """All of them at once, each as vLLM gives it."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
        requests = [
            {
                "prompt": prompt,
                "multi_modal_data": ask.media,
                "mm_processor_kwargs": {"eadp": ask.eadp} if ask.eadp else {},
            }
            for prompt, ask in zip(prompts, asks, strict=True)
        ]
        return self.llm.generate(requests, sampling, use_tqdm=False)

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


@cache
def words(seed: int) -> str:
    """A question of some words, for models that know none."""
    generator = np.random.default_rng(seed)
    letters = [chr(97 + letter) for letter in generator.integers(0, 26, 30)]
    return "".join(letter + (" " if spot % 5 == 4 else "") for spot, letter in enumerate(letters)) + "?"
