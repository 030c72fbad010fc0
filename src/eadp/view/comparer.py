"""A model is asked about a picture, with all tokens and with each method's: what the figure and the report show."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens
from eadp.loading import load_model
from eadp.methods import EADP, BeforeMethod, Method, NoPruning, get_method, get_method_class
from eadp.methods.base import Need
from eadp.models.guides import guide_for
from eadp.models.guides.base import Guide
from eadp.models.prompt import build_inputs, build_prompt
from eadp.runtime import Pruned, attach
from eadp.view.comparison import Comparison, MethodResult, TimedAnswer
from eadp.view.visible_area import visible_area

ROUNDS = 3
"""Prefills of each kind that are timed, in turn; their median is shown."""

NEW_TOKENS = 64
LONGEST = 2000
"""Characters of a question."""


@dataclass(frozen=True)
class InputRecorder(NoPruning):
    """Keep every token, and record what a method would have been given."""

    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    inputs: list[tuple[VisualTokens, TextGuide]] = field(default_factory=list)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        if text is not None:
            self.inputs.append((tokens, text))
        return super().select(tokens, text)


def check_request(question: str, methods: Sequence[str], keep: int | float) -> tuple[str, dict[str, Method]]:
    """What is asked and by which methods, if that makes sense: told before a model is loaded."""
    question = question.strip()
    if not question:
        raise ValueError("the question is empty: ask something about the picture")
    if len(question) > LONGEST:
        raise ValueError(f"the question has {len(question)} characters; at most {LONGEST} are taken")
    chosen = {}
    for name in dict.fromkeys(methods):
        chosen[name] = get_method(name, keep=keep) if get_method_class(name).takes_budget else get_method(name)
    if not chosen:
        raise ValueError("choose at least one method; `eadp methods` lists them")
    return question, chosen


class MethodComparer:
    """One model, asked by one at a time: `attach` changes it while it answers."""

    def __init__(self, model: Any, processor: Any, guide: Guide | None = None, notes: Sequence[str] = ()) -> None:
        self.model = model
        self.processor = processor
        self.guide = guide or guide_for(model, processor)
        self.notes = tuple(notes)
        self._lock = Lock()

    @classmethod
    def from_name(cls, name: str) -> MethodComparer:
        """By the model's name, as `load_model` takes it."""
        notes = ("Pocket model: a toy that knows drawn scenes only. What it says of photographs is out of its world.",)
        return cls(*load_model(name), notes=notes if name == "pocket" else ())

    def compare(
        self,
        images: Sequence[Image.Image],
        question: str,
        methods: Sequence[str],
        keep: int | float,
        rounds: int = ROUNDS,
        progress: Callable[[str], None] = lambda step: None,
    ) -> Comparison:
        """images: one, or the frames of a clip."""
        question, chosen = check_request(question, methods, keep)
        with self._lock, torch.inference_mode():
            return self._compare(images, question, chosen, rounds, progress)

    def _compare(
        self,
        images: Sequence[Image.Image],
        question: str,
        methods: dict[str, Method],
        rounds: int,
        progress: Callable[[str], None],
    ) -> Comparison:
        inputs = build_clip_inputs(self.model, self.processor, images, question)
        inputs = inputs.to(self.model.device, self.model.dtype)
        progress("all tokens")
        recorder = InputRecorder()
        with self._attached(recorder) as pruned:
            said = {"": generate_answer(self.model, self.processor, inputs, NEW_TOKENS)}
            pictures = pruned.images
        tokens, text = recorder.inputs[0]
        chosen: dict[str, Selection] = {}
        for name, method in methods.items():
            progress(name)
            with self._attached(method) as pruned:
                said[name] = generate_answer(self.model, self.processor, inputs, NEW_TOKENS)
                chosen[name] = _together(pruned.last, method, tokens, text)
        progress("time")
        times = self._prefills(inputs, methods, rounds)
        answers = {name: TimedAnswer(said[name], times[name]) for name in said}
        return Comparison(
            images=self._shown(images, len(pictures), len(tokens.grids)),
            question=question,
            grids=tokens.grids,
            results=[MethodResult(chosen[name], answers[name]) for name in methods],
            layout=pictures[0].layout if len(pictures) == 1 else None,
            features=tokens.features,
            relevance=EADP(keep=1.0).relevance(tokens, text),
            whole=answers[""],
            notes=(*self.notes, *(f"{each.method}: {note}" for each in chosen.values() for note in each.notes)),
        )

    def _shown(self, images: Sequence[Image.Image], pictures: int, blocks: int) -> list[Image.Image]:
        """What the tokens lie on: pictures of one block as the model sees them; of a video that joins frames, the first
        of those that share a block."""
        if len(images) == pictures == blocks:
            return [visible_area(image, self.processor) for image in images]
        if len(images) == 1:
            return list(images)
        return [images[block * len(images) // blocks] for block in range(blocks)]

    def _attached(self, method: Method) -> Pruned:
        return attach(self.model, self.processor, method=method, guide=self.guide, budget_over="prompt")

    def _prefills(self, inputs: Any, methods: dict[str, Method], rounds: int) -> dict[str, float]:
        """Medians, with all tokens and by each method, measured in turn."""
        times: dict[str, list[float]] = {name: [] for name in ["", *methods]}
        for turn in range(rounds):
            for name in list(times)[:: -1 if turn % 2 else 1]:
                around: AbstractContextManager[object] = self._attached(methods[name]) if name else nullcontext()
                with around:
                    times[name].append(time_prefill(self.model, inputs))
        return {name: statistics.median(each) for name, each in times.items()}


def generate_answer(model: Any, processor: Any, inputs: Any, new_tokens: int | None = None) -> str:
    """What the model says, greedily."""
    limit = {} if new_tokens is None else {"max_new_tokens": new_tokens}
    out = model.generate(**inputs, do_sample=False, **limit)
    return processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def time_prefill(model: Any, inputs: Any) -> float:
    """Everything until the first logits: vision tower, text guide, selection, language model."""
    start = time.perf_counter()
    logits: Tensor = model(**inputs, logits_to_keep=1).logits
    if logits.device.type == "cuda":
        torch.cuda.synchronize(logits.device)
    return 1000 * (time.perf_counter() - start)


def build_clip_inputs(model: Any, processor: Any, images: Sequence[Image.Image], question: str) -> Any:
    """One question about a picture, or about a clip: as a video where the model takes videos, else as pictures."""
    if len(images) == 1:
        return build_inputs(processor, images, [question])
    if getattr(model.config, "video_token_id", None) is not None:
        text = build_prompt(processor, question, images=0, videos=1)
        return processor(text=[text], videos=[list(images)], return_tensors="pt")
    text = build_prompt(processor, question, images=len(images))
    return processor(text=[text], images=list(images), return_tensors="pt")


def _together(parts: list[Selection], method: Method, tokens: VisualTokens, text: TextGuide) -> Selection:
    """What was kept of several pictures under one budget, as one selection over all their tokens."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(method, BeforeMethod) and method.needs <= {"text"}:
        return method.select(tokens, text)
    starts = torch.tensor([0, *(part.total for part in parts)]).cumsum(0)
    kept = torch.cat([part.indices.cpu() + start for part, start in zip(parts, starts, strict=False)])
    return Selection(kept, len(tokens), parts[0].method, quotas=tokens.quotas(kept), per_layer=parts[0].per_layer)
