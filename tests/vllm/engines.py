"""Two engines for the same prompts: vLLM with the plugin, and transformers with `eadp.attach`."""

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

ANSWER_LENGTH = 8
"""The number of tokens of an answer."""


@dataclass(frozen=True)
class Query:
    """A prompt with its settings.

    Attributes:
        images: The images of the first turn.
        turns: The turns of the conversation: user, assistant, user, …
        eadp: The settings of the request. {}: those of the server.
        clips: The clips of the first turn, each F×h×w×3.
        frames_per_second: Of the clips. By default, their times are not whole seconds.
    """

    images: tuple[Image.Image, ...]
    turns: tuple[str, ...]
    eadp: dict[str, Any] = field(default_factory=dict)
    clips: tuple[np.ndarray, ...] = ()
    frames_per_second: float = 3.0

    @property
    def media(self) -> dict[str, list[Any]]:
        """The images and clips, by modality."""
        return {name: list(each) for name, each in (("image", self.images), ("video", self.clips)) if each}


def random_image(seed: int, width: int, height: int) -> Image.Image:
    """Return an image of random 8×8 blocks, which resizing does not blur away."""
    cells = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize((width, height), Image.Resampling.NEAREST)


def clip(seed: int, frames: int, width: int = 56, height: int = 40) -> np.ndarray:
    return np.stack([np.asarray(random_image(1000 * seed + frame, width, height)) for frame in range(frames)])


def metadata_of(frames: np.ndarray, frames_per_second: float) -> dict[str, Any]:
    """Return what Qwen's processors need to know about a clip."""
    count = len(frames)
    return {
        "fps": frames_per_second,
        "duration": count / frames_per_second,
        "total_num_frames": count,
        "frames_indices": list(range(count)),
        "video_backend": "opencv",
    }


class Transformers:
    """The reference: transformers with `eadp.attach`, in the environment of vLLM."""

    def __init__(self, folder: Path, guide: str | None = None, llava_video: bool = False) -> None:
        """Load a checkpoint. `guide` and `llava_video` have the meaning of the server's settings."""
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor = AutoProcessor.from_pretrained(folder)
        if llava_video:
            convert(self.model, self.processor)
        self.guide = guide and guide_for(self.model, self.processor, guide)
        # The pocket model asks for its tokens' original positions, which vLLM cannot give: see docs/guides/serving.md.
        self.positions = None if self.model.config.model_type.startswith("qwen") else "renumber"

    def prompt(self, query: Query) -> str:
        conversation = [
            {"role": "assistant", "content": turn} if number % 2 else {"role": "user", "content": _parts(query, number)}
            for number, turn in enumerate(query.turns)
        ]
        return self.processor.apply_chat_template(conversation, add_generation_prompt=True)

    def inputs(self, query: Query) -> Any:
        media: dict[str, Any] = {f"{name}s": each for name, each in query.media.items()}
        if query.clips and self.positions is None:
            metadata = [metadata_of(each, query.frames_per_second) for each in query.clips]
            media |= {"video_metadata": metadata, "do_sample_frames": False}
        return self.processor(text=self.prompt(query), return_tensors="pt", **media)

    def answer(self, query: Query, server: dict[str, Any]) -> tuple[list[int], list[list[int]], int]:
        """Return the token ids of the answer, the kept tokens per image, and the length of the pruned prompt."""
        settings = {"method": "eadp", **server, **query.eadp}
        question = settings.pop("question", None)
        if "preset" in settings:
            settings["rounding"] = "exact"  # as the server does
        inputs = self.inputs(query)
        settings.setdefault("positions", self.positions)
        with eadp.attach(self.model, self.processor, question=question, guide=self.guide, **settings) as pruned:
            out = self.model.generate(
                **inputs, max_new_tokens=ANSWER_LENGTH, min_new_tokens=ANSWER_LENGTH, do_sample=False, eos_token_id=None
            )
            kept = [selection.indices.tolist() for selection in pruned.last]
            length = int(pruned.columns.sum())
        return out[0, inputs["input_ids"].shape[1] :].tolist(), kept, length


def _parts(query: Query, number: int) -> list[dict[str, str]]:
    media = [{"type": name} for name, each in query.media.items() for _ in each] if number == 0 else []
    return [*media, {"type": "text", "text": query.turns[number]}]


class Engine:
    """vLLM in its own process: with the plugin, or without it if there are no settings for it."""

    def __init__(self, folder: Path, server: dict[str, Any] | None, **settings: Any) -> None:
        from transformers import AutoConfig
        from vllm import LLM

        family = AutoConfig.from_pretrained(folder).model_type
        self.needs_metadata = family.startswith("qwen")
        modalities = ("image",) if family in ("llava", "llava_next") else ("image", "video")
        self.llm = LLM(
            str(folder),
            enforce_eager=True,
            dtype="float32",
            block_size=32,
            max_model_len=2048,
            limit_mm_per_prompt=dict.fromkeys(modalities, 2),
            hf_overrides={} if server is None else {"architectures": [ARCHITECTURES[family]], "eadp": server},
            **settings,
        )

    def answers(self, prompts: Sequence[str], queries: Sequence[Query]) -> list[Any]:
        """Send all prompts at once and return vLLM's outputs."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=ANSWER_LENGTH, ignore_eos=True, detokenize=False)
        requests = [
            {
                "prompt": prompt,
                "multi_modal_data": self._media(query),
                "mm_processor_kwargs": {"eadp": query.eadp} if query.eadp else {},
            }
            for prompt, query in zip(prompts, queries, strict=True)
        ]
        return self.llm.generate(requests, sampling, use_tqdm=False)

    def _media(self, query: Query) -> dict[str, list[Any]]:
        media = query.media
        if query.clips and self.needs_metadata:
            media["video"] = [(each, metadata_of(each, query.frames_per_second)) for each in query.clips]
        return media

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


@cache
def random_question(seed: int) -> str:
    """Return a question of random letters."""
    generator = np.random.default_rng(seed)
    letters = [chr(97 + letter) for letter in generator.integers(0, 26, 30)]
    return "".join(letter + (" " if spot % 5 == 4 else "") for spot, letter in enumerate(letters)) + "?"
