"""The pocket benchmark: questions about drawn scenes, a model's answers with all visual tokens and with few."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from PIL import Image

from eadp.evaluate.journal import Journal, Record
from eadp.loading import POCKET, load_model
from eadp.method_spec import BLIND, MAJORITY, MethodSpec, build_method
from eadp.methods import Random
from eadp.models.guides import Guide, guide_for
from eadp.models.prompt import build_inputs
from eadp.pocket.samples import Sample, samples
from eadp.pocket.storage import LONGEST_ANSWER, WEIGHTS
from eadp.pocket.world import Split
from eadp.runtime import attach
from eadp.utils.statistics import wilson_interval

BATCH = 16
RECORDED = ("answer", "right", "tokens", "sent", "layer_mean")
"""What an `Outcome` takes of the records, in its order."""


@dataclass
class Outcome:
    """One setting's answers, question by question.

    tokens:      visual tokens left for each; sent: with the newlines that stay, what the language model gets.
    layer_means: mean of those left over its layers.
    """

    spec: MethodSpec
    answers: list[str] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    layer_means: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(sum(self.right), len(self.right))

    @property
    def mean_tokens(self) -> float:
        return sum(self.tokens) / len(self.tokens)

    @property
    def mean_sent(self) -> float:
        return sum(self.sent) / len(self.sent)

    @property
    def layer_mean(self) -> float:
        return sum(self.layer_means) / len(self.layer_means)


@dataclass(frozen=True)
class PocketReport:
    """What was asked, and what each setting answered."""

    kinds: list[str]
    expected: list[str]
    outcomes: list[Outcome]
    model: str = POCKET

    def by_kind(self, outcome: Outcome) -> dict[str, float]:
        found: dict[str, list[bool]] = defaultdict(list)
        for kind, right in zip(self.kinds, outcome.right, strict=True):
            found[kind].append(right)
        return {kind: sum(right) / len(right) for kind, right in sorted(found.items())}

    def of(self, method: str, keep: int | float | None = None) -> Outcome:
        return next(o for o in self.outcomes if (o.spec.method, o.spec.keep) == (method, keep))


def identity(model: str = POCKET, split: Split = "test") -> Record:
    """What all results of one folder have in common: they can be set side by side, whatever the methods are."""
    same = {"benchmark": "pocket", "split": split, "model": model, "seed": Random().seed}
    if model != POCKET:
        return same
    return {**same, "weights": hashlib.sha256((WEIGHTS / "model.safetensors").read_bytes()).hexdigest()[:16]}


def evaluate(
    specs: Sequence[MethodSpec],
    total: int,
    split: Split = "test",
    progress: Callable[[int], None] = lambda answers: None,
    *,
    model: str = POCKET,
    journal: Journal | None = None,
) -> PocketReport:
    """Ask `total` questions under every setting, batch by batch, so that all settings see the same pictures.

    progress: told how many answers there are more, settings · total in the end.
    model:    as `eadp.loading.load_model` takes it.
    journal:  opened with `identity(model, split)`. What it has is not asked again; what is new is added to it.
    """
    for spec in specs:
        build_method(spec)
    asked = _Asked(model)
    answers: list[list[Record]] = [[] for _ in specs]
    questions = _Questions(split, total)
    for start in range(0, total, BATCH):
        numbers = range(start, min(start + BATCH, total))
        for spec, records in zip(specs, answers, strict=True):
            keys = [f"{spec.key}/{number}" for number in numbers]
            done = {key: journal[key] for key in keys if journal is not None and key in journal}
            if len(done) < len(keys):
                # The whole batch even where a part is done: the same batch gives the same answers to the last bit.
                fresh = dict(zip(keys, asked.records(questions.at(numbers), spec), strict=True))
                new = {key: record for key, record in fresh.items() if key not in done}
                if journal is not None:
                    journal.extend(new.items())
                done |= new
            records += [done[key] for key in keys]
            progress(len(keys))
    return _report(model, specs, answers)


def _report(model: str, specs: Sequence[MethodSpec], answers: Sequence[Sequence[Record]]) -> PocketReport:
    """answers: settings × questions."""
    outcomes = [
        Outcome(spec, *([record[name] for record in records] for name in RECORDED))
        for spec, records in zip(specs, answers, strict=True)
    ]
    kinds, expected = ([record[name] for record in answers[0]] for name in ("kind", "expected"))
    return PocketReport(kinds, expected, [*outcomes, _majority(kinds, expected)], model)


class _Questions:
    """The questions of a split, drawn in their order and only as far as they are wanted."""

    def __init__(self, split: Split, total: int):
        self._stream = enumerate(samples(split, total))
        self._batch: dict[int, Sample] = {}

    def at(self, numbers: range) -> list[Sample]:
        """Those of a batch that does not lie before the last one that was asked for."""
        if numbers[0] not in self._batch:
            ahead = dict(islice(self._stream, numbers[-1] - max(self._batch, default=-1)))
            self._batch = {number: sample for number, sample in ahead.items() if number in numbers}
        return [self._batch[number] for number in numbers]


class _Asked:
    """The model that is asked; loaded when it first is."""

    def __init__(self, name: str):
        self.name = name

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        model, processor = load_model(self.name)
        processor.tokenizer.padding_side = "left"
        return model, processor

    @cached_property
    def _guide(self) -> Guide:
        """One for all settings: loading it reads a checkpoint."""
        return guide_for(*self._loaded)

    def records(self, batch: Sequence[Sample], spec: MethodSpec) -> list[Record]:
        images = [sample.image for sample in batch]
        if spec.method == BLIND:
            images = [Image.new("RGB", image.size, (127, 127, 127)) for image in images]
        answers, kept = self._answers(images, [sample.question for sample in batch], spec)
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
            for sample, answer, (tokens, sent, mean) in zip(batch, answers, kept, strict=True)
        ]

    @torch.inference_mode()
    def _answers(
        self, images: Sequence[Image.Image], questions: Sequence[str], spec: MethodSpec
    ) -> tuple[list[str], list[tuple[int, int, float]]]:
        """The answers, and for each question the tokens after pruning, those sent, and their mean over layers."""
        model, processor = self._loaded
        inputs = build_inputs(processor, images, questions).to(model.device)
        method = build_method(spec)
        guide = self._guide if method is not None and "text" in method.needs else None
        with nullcontext() if method is None else attach(model, processor, guide=guide, **spec.attachment) as pruned:
            out = model.generate(**inputs, do_sample=False, max_new_tokens=LONGEST_ANSWER)
        answers = processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        if pruned is not None:
            return answers, [(len(each), each.tokens_sent, each.tokens_layer_mean) for each in pruned.last]
        return answers, [(n, n, n) for n in (inputs["input_ids"] == model.config.image_token_id).sum(dim=1).tolist()]


def _majority(kinds: Sequence[str], expected: Sequence[str]) -> Outcome:
    """Always the most frequent answer of the question's kind: what can be had without looking."""
    frequent = {
        k: Counter(e for e, kind in zip(expected, kinds, strict=True) if kind == k).most_common(1)[0][0]
        for k in set(kinds)
    }
    answers = [frequent[kind] for kind in kinds]
    right = [answer == wanted for answer, wanted in zip(answers, expected, strict=True)]
    nothing = [0] * len(kinds)
    return Outcome(MethodSpec(MAJORITY), answers, right, nothing, nothing, [0.0] * len(kinds))
