"""The pocket benchmark: questions about drawn scenes, the pocket model's answers with all tokens and with few."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from PIL import Image

from eadp.evaluate.statistics import wilson
from eadp.methods import Method, make
from eadp.pocket import guide as pocket_guide
from eadp.pocket import load
from eadp.pocket.samples import Sample, samples
from eadp.pocket.world import Split
from eadp.runtime import attach

ALL, BLIND, MAJORITY = "all tokens", "blind", "majority answer"
BATCH = 16


@dataclass(frozen=True)
class Setting:
    """What is run: a method with a budget; or ALL, or BLIND (all tokens of a grey picture)."""

    method: str
    keep: int | float | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def pruning(self) -> Method | None:
        return None if self.method in (ALL, BLIND) else make(self.method, keep=self.keep, **self.options)

    def __str__(self) -> str:
        if self.keep is None:
            return self.method
        return (
            f"{self.method} {self.keep:.4g}" if isinstance(self.keep, int) else f"{self.method} {100 * self.keep:.4g} %"
        )


@dataclass
class Outcome:
    """One setting's answers, question by question; the visual tokens left for each, and their mean over the layers."""

    setting: Setting
    answers: list[str] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    layer_means: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(sum(self.right), len(self.right))

    @property
    def mean_tokens(self) -> float:
        return sum(self.tokens) / len(self.tokens)

    @property
    def layer_mean(self) -> float:
        return sum(self.layer_means) / len(self.layer_means)


@dataclass(frozen=True)
class Report:
    """What was asked, and what each setting answered."""

    kinds: list[str]
    expected: list[str]
    outcomes: list[Outcome]

    def by_kind(self, outcome: Outcome) -> dict[str, float]:
        found: dict[str, list[bool]] = defaultdict(list)
        for kind, right in zip(self.kinds, outcome.right, strict=True):
            found[kind].append(right)
        return {kind: sum(right) / len(right) for kind, right in sorted(found.items())}

    def of(self, method: str, keep: int | float | None = None) -> Outcome:
        return next(o for o in self.outcomes if (o.setting.method, o.setting.keep) == (method, keep))


def evaluate(
    settings: Sequence[Setting],
    total: int,
    split: Split = "test",
    progress: Callable[[int], None] = lambda questions: None,
) -> Report:
    """Ask `total` questions under every setting, batch by batch, so that all settings see the same pictures.

    progress is told after each batch how many questions were answered under all settings.
    """
    prunings = [setting.pruning() for setting in settings]
    model, processor = load()
    guide = pocket_guide(model, processor)
    outcomes = [Outcome(setting) for setting in settings]
    kinds, expected = [], []
    for batch in _batches(samples(split, total), BATCH):
        kinds += [sample.kind for sample in batch]
        expected += [sample.answer for sample in batch]
        for outcome, method in zip(outcomes, prunings, strict=True):
            blind = outcome.setting.method == BLIND
            answers, kept = _answers(model, processor, guide, batch, method, blind)
            outcome.answers += answers
            outcome.right += [sample.right(answer) for sample, answer in zip(batch, answers, strict=True)]
            outcome.tokens += [int(after) for after, _ in kept]
            outcome.layer_means += [mean for _, mean in kept]
        progress(len(batch))
    return Report(kinds, expected, [*outcomes, _majority(kinds, expected)])


@torch.inference_mode()
def _answers(
    model: Any, processor: Any, guide: Any, batch: Sequence[Sample], method: Method | None, blind: bool
) -> tuple[list[str], list[tuple[float, float]]]:
    """The answers, and for each question the tokens after pruning and their mean over layers."""
    images = [sample.image for sample in batch]
    if blind:
        images = [Image.new("RGB", image.size, (127, 127, 127)) for image in images]
    inputs = processor(images=images, text=[sample.prompt for sample in batch], return_tensors="pt", padding=True)
    with nullcontext() if method is None else attach(model, processor, method=method, guide=guide) as pruned:
        out = model.generate(**inputs, do_sample=False)
    answers = processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    if pruned is not None:
        return answers, [(len(selection), selection.tokens_layer_mean) for selection in pruned.last]
    return answers, [(n, n) for n in (inputs["input_ids"] == model.config.image_token_id).sum(dim=1).tolist()]


def _majority(kinds: Sequence[str], expected: Sequence[str]) -> Outcome:
    """Always the most frequent answer of the question's kind: what can be had without looking."""
    frequent = {
        k: Counter(e for e, kind in zip(expected, kinds, strict=True) if kind == k).most_common(1)[0][0]
        for k in set(kinds)
    }
    answers = [frequent[kind] for kind in kinds]
    right = [answer == wanted for answer, wanted in zip(answers, expected, strict=True)]
    return Outcome(Setting(MAJORITY), answers, right, [0] * len(kinds), [0.0] * len(kinds))


def _batches(items: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
