"""Questions answered with all visual tokens and with a few: about drawn scenes, or any others."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import torch
from PIL import Image

from eadp.evaluate.journal import Journal, Record
from eadp.evaluate.loyalty import hard_samples, loyalty
from eadp.evaluate.tower_cache import remember_images
from eadp.loading import load_model
from eadp.method_spec import ALL_TOKENS, BLIND, MAJORITY, MethodSpec, build_method
from eadp.methods import Downsample, Random
from eadp.models.guides import Guide, guide_for
from eadp.models.prompt import build_inputs, build_prompt
from eadp.pocket import checkpoint
from eadp.pocket.names import OFFLINE, PHOTO, POCKET
from eadp.pocket.storage import LONGEST_ANSWER
from eadp.pocket.things import Split
from eadp.pocket.worlds import samples_for, world_of
from eadp.runtime import attach
from eadp.utils.statistics import wilson_interval

BATCH = 16
OUTCOME_FIELDS = ("answer", "right", "tokens", "sent", "layer_mean")
"""The fields of a record that make up an `Outcome`, in its order."""


class Question(Protocol):
    """A question about an image or a clip.

    Attributes:
        image: The image; of a clip, the first frame.
        frames: The frames of a clip.
        question: The question.
        answer: The right answer.
        kind: The kind of the question.
    """

    @property
    def image(self) -> Image.Image: ...
    @property
    def frames(self) -> tuple[Image.Image, ...]: ...
    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def kind(self) -> str: ...
    def is_correct(self, answer: str) -> bool:
        """Whether an answer is right."""


@dataclass
class Outcome:
    """The answers of one setting. Each list has one entry per question.

    Attributes:
        spec: The setting.
        answers: The answers.
        right: Whether each answer is right.
        tokens: The visual tokens that stay after pruning.
        sent: The same, plus the newline tokens that stay: what the language model receives.
        layer_means: The visual tokens, averaged over the layers of the language model.
    """

    spec: MethodSpec
    answers: list[str] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    layer_means: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the accuracy."""
        return wilson_interval(sum(self.right), len(self.right))

    @property
    def mean_tokens(self) -> float:
        """The mean of `tokens`."""
        return sum(self.tokens) / len(self.tokens)

    @property
    def mean_sent(self) -> float:
        """The mean of `sent`."""
        return sum(self.sent) / len(self.sent)

    @property
    def layer_mean(self) -> float:
        """The mean of `layer_means`."""
        return sum(self.layer_means) / len(self.layer_means)


@dataclass(frozen=True)
class PocketReport:
    """The questions of a run, and the outcome of every setting.

    Attributes:
        kinds: The kind of each question.
        expected: The right answer to each question.
        outcomes: One per setting; the last one is the majority control.
        model: The name of the model.
        benchmark: What the questions are about: "shapes", "things", "clips" or "photographs".
    """

    kinds: list[str]
    expected: list[str]
    outcomes: list[Outcome]
    model: str = POCKET
    benchmark: str = "shapes"

    def accuracy_by_kind(self, outcome: Outcome) -> dict[str, float]:
        """Return the accuracy of an outcome per kind of question, sorted by kind."""
        return {kind: sum(right) / len(right) for kind, right in self._right_by_kind(outcome).items()}

    def intervals_by_kind(self, outcome: Outcome) -> dict[str, tuple[float, float]]:
        """Return the 95 % Wilson interval of the accuracy per kind of question, sorted by kind."""
        return {kind: wilson_interval(sum(right), len(right)) for kind, right in self._right_by_kind(outcome).items()}

    def _right_by_kind(self, outcome: Outcome) -> dict[str, list[bool]]:
        by_kind: dict[str, list[bool]] = defaultdict(list)
        for kind, right in zip(self.kinds, outcome.right, strict=True):
            by_kind[kind].append(right)
        return dict(sorted(by_kind.items()))

    def loyalty(self, outcome: Outcome) -> float | None:
        """Return the share of answers that equal those of the unpruned model; None if that was not run."""
        unpruned = next((o for o in self.outcomes if o.spec.method == ALL_TOKENS), None)
        return (
            None if unpruned is None else loyalty(dict(enumerate(outcome.answers)), dict(enumerate(unpruned.answers)))
        )

    def only_hard(self, keep: int | float) -> PocketReport:
        """Return the report of the questions that down-sampling to a budget does not answer right.

        It has the outcomes of this budget, and those without any.

        Args:
            keep: The budget. `downsample` must be among the outcomes at this budget.
        """
        hard = hard_samples(dict(enumerate(map(float, self.find_outcome(Downsample.name, keep).right))))

        def chosen(values: list[Any]) -> list[Any]:
            return [values[number] for number in hard]

        outcomes = [
            Outcome(o.spec, *(chosen(values) for values in (o.answers, o.right, o.tokens, o.sent, o.layer_means)))
            for o in self.outcomes
            if o.spec.keep in (None, keep)
        ]
        return PocketReport(chosen(self.kinds), chosen(self.expected), outcomes, self.model, self.benchmark)

    def find_outcome(self, method: str, keep: int | float | None = None) -> Outcome:
        """Return the first outcome of a method at a budget."""
        return next(o for o in self.outcomes if (o.spec.method, o.spec.keep) == (method, keep))


def journal_settings(model: str = POCKET, split: Split = "test") -> Record:
    """Return what all results in one folder share, whatever their methods, so that they can be compared.

    Raises:
        ValueError: If the model knows no drawn scenes.
    """
    if model == PHOTO:
        raise ValueError("the model 'photo' knows photographs and no drawn scenes: run `eadp eval photo`")
    return {"benchmark": world_of(model), "split": split, "seed": Random().seed, **model_settings(model)}


def model_settings(model: str) -> Record:
    """Return the name of a model, and a short hash of its weights if it is one that runs offline."""
    if model not in OFFLINE:
        return {"model": model}
    weights = checkpoint(model) / "model.safetensors"
    return {"model": model, "weights": hashlib.sha256(weights.read_bytes()).hexdigest()[:16]}


def evaluate(
    specs: Sequence[MethodSpec],
    total: int,
    split: Split = "test",
    progress: Callable[[int], None] = lambda answers: None,
    *,
    model: str = POCKET,
    journal: Journal | None = None,
) -> PocketReport:
    """Ask the first `total` questions with every setting.

    Args:
        specs: The settings. All of them see the same images.
        total: The number of questions.
        split: The split of the model's world from which the questions come.
        progress: Called with the number of new answers; they add up to settings times questions.
        model: A name for `eadp.loading.load_model`.
        journal: A journal that was opened with `journal_settings(model, split)`. Questions that it has answers to are
            not asked again; new answers are added to it.

    Raises:
        ValueError: If a method, an option or a value is unknown.
    """
    return ask(specs, samples_for(model, split, total), total, world_of(model), progress, model=model, journal=journal)


def ask(
    specs: Sequence[MethodSpec],
    questions: Iterable[Question],
    total: int,
    benchmark: str,
    progress: Callable[[int], None] = lambda answers: None,
    *,
    model: str,
    journal: Journal | None = None,
    batch: int = BATCH,
    longest_answer: int = LONGEST_ANSWER,
) -> PocketReport:
    """Ask the first `total` of some questions with every setting.

    Args:
        specs: The settings. All of them see the same images.
        questions: The questions, always the same ones; they are drawn only as far as they are needed.
        total: The number of questions.
        benchmark: What the questions are about.
        progress: Called with the number of new answers; they add up to settings times questions.
        model: A name for `eadp.loading.load_model`.
        journal: A journal for these questions to this model. Questions that it has answers to are not asked again; new
            answers are added to it.
        batch: The number of questions that are asked at once.
        longest_answer: Largest number of tokens of an answer.

    Raises:
        ValueError: If a method, an option or a value is unknown.
    """
    for spec in specs:
        build_method(spec)
    answering = _AnsweringModel(model, longest_answer)
    answers: list[list[Record]] = [[] for _ in specs]
    stream = _QuestionStream(questions)
    for start in range(0, total, batch):
        numbers = range(start, min(start + batch, total))
        for spec, records in zip(specs, answers, strict=True):
            keys = [f"{spec.key}/{number}" for number in numbers]
            known = {key: journal[key] for key in keys if journal is not None and key in journal}
            if len(known) < len(keys):
                # The full batch even if some answers are known: only the same batch gives bit-identical answers.
                answered = dict(zip(keys, answering.answer(stream.batch(numbers), spec), strict=True))
                new = {key: record for key, record in answered.items() if key not in known}
                if journal is not None:
                    journal.extend(new.items())
                known |= new
            records += [known[key] for key in keys]
            progress(len(keys))
    return _build_report(model, benchmark, specs, answers)


def _build_report(
    model: str, benchmark: str, specs: Sequence[MethodSpec], answers: Sequence[Sequence[Record]]
) -> PocketReport:
    """Build the report from one record per setting and question."""
    outcomes = [
        Outcome(spec, *([record[name] for record in records] for name in OUTCOME_FIELDS))
        for spec, records in zip(specs, answers, strict=True)
    ]
    kinds, expected = ([record[name] for record in answers[0]] for name in ("kind", "expected"))
    return PocketReport(kinds, expected, [*outcomes, _majority_outcome(kinds, expected)], model, benchmark)


class _QuestionStream:
    """Questions, drawn in order and only as far as they are needed."""

    def __init__(self, questions: Iterable[Question]):
        self._stream = enumerate(questions)
        self._batch: dict[int, Question] = {}

    def batch(self, numbers: range) -> list[Question]:
        """Return the questions with these numbers. Batches must be requested in ascending order."""
        if numbers[0] not in self._batch:
            ahead = dict(islice(self._stream, numbers[-1] - max(self._batch, default=-1)))
            self._batch = {number: sample for number, sample in ahead.items() if number in numbers}
        return [self._batch[number] for number in numbers]


class _AnsweringModel:
    """The model that answers. It is loaded only when a question has no answer yet."""

    def __init__(self, name: str, longest_answer: int):
        self.name, self.longest_answer = name, longest_answer

    @cached_property
    def _model_and_processor(self) -> tuple[Any, Any]:
        model, processor = load_model(self.name)
        processor.tokenizer.padding_side = "left"
        if (tower := getattr(model.model, "vision_tower", None)) is not None:
            remember_images(tower)
        return model, processor

    @cached_property
    def _guide(self) -> Guide:
        """The guide, shared by all settings because loading it reads a checkpoint."""
        return guide_for(*self._model_and_processor)

    def answer(self, batch: Sequence[Question], spec: MethodSpec) -> list[Record]:
        """Answer a batch of questions and return one record per question."""
        answers, token_counts = self._generate(batch, spec)
        return [
            {
                "method": spec.method,
                "keep": spec.keep,
                "options": spec.options,
                "kind": sample.kind,
                "expected": sample.answer,
                "answer": answer,
                "right": sample.is_correct(answer),
                "tokens": tokens,
                "sent": sent,
                "layer_mean": mean,
            }
            for sample, answer, (tokens, sent, mean) in zip(batch, answers, token_counts, strict=True)
        ]

    @torch.inference_mode()
    def _generate(self, batch: Sequence[Question], spec: MethodSpec) -> tuple[list[str], list[tuple[int, int, float]]]:
        """Return the answers, and per question the tokens after pruning, those sent, and their mean over the layers."""
        model, processor = self._model_and_processor
        inputs = _build_inputs(processor, batch, spec.method == BLIND).to(model.device)
        method = build_method(spec)
        guide = self._guide if method is not None and "text" in method.needs else None
        pruning = nullcontext() if method is None else attach(model, processor, guide=guide, **spec.attach_arguments)
        with pruning as pruned:
            output = model.generate(**inputs, do_sample=False, max_new_tokens=self.longest_answer)
        answers = processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        if pruned is not None:
            return answers, [(len(each), each.tokens_sent, each.tokens_layer_mean) for each in pruned.last]
        visual = model.config.video_token_id if batch[0].frames else model.config.image_token_id
        return answers, [(n, n, n) for n in (inputs["input_ids"] == visual).sum(dim=1).tolist()]


def _build_inputs(processor: Any, batch: Sequence[Question], blind: bool) -> Any:
    """Build the inputs for a batch of questions, with grey images for the blind control."""
    show = _grey if blind else lambda image: image
    questions = [each.question for each in batch]
    if not batch[0].frames:
        return build_inputs(processor, [show(each.image) for each in batch], questions)
    prompts = [build_prompt(processor, question, images=0, videos=1) for question in questions]
    clips = [[show(frame) for frame in each.frames] for each in batch]
    return processor(text=prompts, videos=clips, padding=True, return_tensors="pt")


def _grey(image: Image.Image) -> Image.Image:
    return Image.new("RGB", image.size, (127, 127, 127))


def _majority_outcome(kinds: Sequence[str], expected: Sequence[str]) -> Outcome:
    """Return the outcome of always giving the most frequent answer to the kind of question."""
    most_frequent = {
        k: Counter(e for e, kind in zip(expected, kinds, strict=True) if kind == k).most_common(1)[0][0]
        for k in set(kinds)
    }
    answers = [most_frequent[kind] for kind in kinds]
    right = [answer == right_answer for answer, right_answer in zip(answers, expected, strict=True)]
    no_tokens = [0] * len(kinds)
    return Outcome(MethodSpec(MAJORITY), answers, right, no_tokens, no_tokens, [0.0] * len(kinds))
