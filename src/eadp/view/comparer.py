"""Ask a model about an image with all tokens and with the tokens of each method, for the figure and the report."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
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
from eadp.models.prompt import build_clip_inputs
from eadp.pocket.names import DRAWN, PHOTO
from eadp.runtime import Pruned, attach
from eadp.view.comparison import Comparison, MethodResult, TimedAnswer
from eadp.view.visible_area import visible_area

ROUNDS = 3
"""Timed prefills per method. Their median is shown."""

MAX_NEW_TOKENS = 64
MAX_QUESTION_LENGTH = 2000
"""Limit of a question, in characters."""


@dataclass(frozen=True)
class InputRecorder(NoPruning):
    """Keep every token, and record the inputs that a method would have received."""

    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    inputs: list[tuple[VisualTokens, TextGuide]] = field(default_factory=list)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        if text is not None:
            self.inputs.append((tokens, text))
        return super().select(tokens, text)


def check_request(question: str, methods: Sequence[str], keep: int | float) -> tuple[str, dict[str, Method]]:
    """Check a question, the names of methods and a budget before a model is loaded.

    Args:
        question: The question.
        methods: Names of methods.
        keep: The number or share of tokens to keep.

    Returns:
        The question without surrounding spaces, and the methods by name.

    Raises:
        ValueError: If the question is empty or too long, there is no method, a name is unknown, or the budget is
            out of range.
    """
    question = question.strip()
    if not question:
        raise ValueError("the question is empty: ask something about the image")
    if len(question) > MAX_QUESTION_LENGTH:
        raise ValueError(f"the question has {len(question)} characters; the limit is {MAX_QUESTION_LENGTH}")
    chosen = {}
    for name in dict.fromkeys(methods):
        chosen[name] = get_method(name, keep=keep) if get_method_class(name).takes_budget else get_method(name)
    if not chosen:
        raise ValueError("choose at least one method; `eadp methods` lists them")
    return question, chosen


NOTES = {
    name: (f"The model {name!r} is a toy that knows drawn scenes only. Its answers about photographs mean nothing.",)
    for name in DRAWN
} | {
    PHOTO: (
        "The model 'photo' knows the 1,000 things of ImageNet. It knows no people, and can neither count nor read.",
    )
}
"""Sentences to show with every comparison of a model."""


class MethodComparer:
    """Compares methods on one model.

    Threads take turns, because `attach` changes the model while it answers.

    Args:
        model: The model.
        processor: Its processor.
        guide: The text guide; by default the one of the model's family.
        notes: Sentences to show with every comparison.
    """

    def __init__(self, model: Any, processor: Any, guide: Guide | None = None, notes: Sequence[str] = ()) -> None:
        self.model = model
        self.processor = processor
        self.guide = guide or guide_for(model, processor)
        self.notes = tuple(notes)
        self._lock = Lock()

    @classmethod
    def from_name(cls, name: str, notes: Sequence[str] = ()) -> MethodComparer:
        """Load the model by name, as `load_model` does.

        Args:
            name: The name.
            notes: Sentences to show with every comparison, after those about the model.
        """
        return cls(*load_model(name), notes=(*NOTES.get(name, ()), *notes))

    def compare(
        self,
        images: Sequence[Image.Image],
        question: str,
        methods: Sequence[str],
        keep: int | float,
        rounds: int = ROUNDS,
        progress: Callable[[str], None] = lambda step: None,
    ) -> Comparison:
        """Ask the model with all tokens and with the tokens of each method.

        Args:
            images: One image, or the frames of a clip.
            question: The question.
            methods: Names of the methods.
            keep: The number or share of tokens to keep.
            rounds: Timed prefills per method.
            progress: Called with the name of each step as it starts.

        Raises:
            ValueError: As in `check_request`.
        """
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
            texts = {"": generate_answer(self.model, self.processor, inputs, MAX_NEW_TOKENS)}
            layouts = pruned.images
        tokens, guidance = recorder.inputs[0]
        selections: dict[str, Selection] = {}
        for name, method in methods.items():
            progress(name)
            with self._attached(method) as pruned:
                texts[name] = generate_answer(self.model, self.processor, inputs, MAX_NEW_TOKENS)
                selections[name] = _join_selections(pruned.last, method, tokens, guidance)
        progress("time")
        times = self._median_prefill_times(inputs, methods, rounds)
        answers = {name: TimedAnswer(text, times[name]) for name, text in texts.items()}
        return Comparison(
            images=self._images_under_tokens(images, len(layouts), len(tokens.grids)),
            question=question,
            grids=tokens.grids,
            results=[MethodResult(selections[name], answers[name]) for name in methods],
            layout=layouts[0].layout if len(layouts) == 1 else None,
            features=tokens.features,
            relevance=EADP(keep=1.0).relevance(tokens, guidance),
            unpruned=answers[""],
            notes=(*self.notes, *(f"{each.method}: {note}" for each in selections.values() for note in each.notes)),
        )

    def _images_under_tokens(self, images: Sequence[Image.Image], layouts: int, blocks: int) -> list[Image.Image]:
        """Return one image per block, or the image that all blocks lie on.

        An image of one block is cut as the model receives it. If a model joins frames of a video, the first frame of
        each block is shown.
        """
        if len(images) == layouts == blocks:
            return [visible_area(image, self.processor) for image in images]
        if len(images) == 1:
            return list(images)
        return [images[block * len(images) // blocks] for block in range(blocks)]

    def _attached(self, method: Method) -> Pruned:
        return attach(self.model, self.processor, method=method, guide=self.guide, budget_over="prompt")

    def _median_prefill_times(self, inputs: Any, methods: dict[str, Method], rounds: int) -> dict[str, float]:
        """Return the median prefill time per method, and with all tokens under the empty name."""
        times: dict[str, list[float]] = {name: [] for name in ["", *methods]}
        for turn in range(rounds):
            for name in list(times)[:: -1 if turn % 2 else 1]:
                context: AbstractContextManager[object] = self._attached(methods[name]) if name else nullcontext()
                with context:
                    times[name].append(time_prefill(self.model, inputs))
        return {name: statistics.median(each) for name, each in times.items()}


def generate_answer(model: Any, processor: Any, inputs: Any, new_tokens: int | None = None) -> str:
    """Generate an answer by greedy decoding."""
    limit = {} if new_tokens is None else {"max_new_tokens": new_tokens}
    out = model.generate(**inputs, do_sample=False, **limit)
    return processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def time_prefill(model: Any, inputs: Any) -> float:
    """Return the milliseconds until the first logits: vision tower, text guide, selection and language model."""
    start = time.perf_counter()
    logits: Tensor = model(**inputs, logits_to_keep=1).logits
    if logits.device.type == "cuda":
        torch.cuda.synchronize(logits.device)
    return 1000 * (time.perf_counter() - start)


def _join_selections(parts: list[Selection], method: Method, tokens: VisualTokens, text: TextGuide) -> Selection:
    """Join the selections of several images under one budget into one selection over all their tokens."""
    if len(parts) == 1:
        return parts[0]
    newlines = sum(part.newlines for part in parts)
    if isinstance(method, BeforeMethod) and method.needs <= {"text"}:
        return replace(method.select(tokens, text), newlines=newlines)
    starts = torch.tensor([0, *(part.total for part in parts)]).cumsum(0)
    kept = torch.cat([part.indices.cpu() + start for part, start in zip(parts, starts, strict=False)])
    quotas, per_layer = tokens.quotas(kept), parts[0].per_layer
    return Selection(kept, len(tokens), parts[0].method, quotas=quotas, per_layer=per_layer, newlines=newlines)
