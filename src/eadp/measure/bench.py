"""Time, memory and multiply-adds of pruning methods beside the unpruned model, in one run.

Each sample is one round: every row answers it once, forth and back in turn, so that none always runs in another's wake.
What is timed is `model.generate` on inputs that are ready, from its call to its end, for every row alike: vision tower,
guide, choice and language model included, processor and attaching left out. A question is always read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import StoppingCriteria

from eadp.core.trace import listening
from eadp.measure.op_counts import OperationCounts, count_operations
from eadp.measure.stopwatch import PRUNER, Clock, Stopwatch, name_model_parts
from eadp.method_spec import ALL_TOKENS
from eadp.methods import Method
from eadp.models import adapter_of
from eadp.runtime import attach
from eadp.runtime.hooks import Hooks
from eadp.utils.statistics import MedianInterval, median_interval

if TYPE_CHECKING:
    from eadp.models.guides import Guide

TIMES = ("prefill", "first_token", "decode", "latency")


@dataclass(frozen=True)
class BenchRow:
    """What is measured: a method with its budget, made by a preset or not, or the unpruned model (None)."""

    method: Method | None = None
    preset: str | None = None

    @property
    def name(self) -> str:
        """As it is written on a command line: eadp, eadp:published."""
        if self.method is None:
            return ALL_TOKENS
        return self.method.name if self.preset is None else f"{self.method.name}:{self.preset}"

    @property
    def keep(self) -> int | float | None:
        return None if self.method is None else self.method.keep

    def __str__(self) -> str:
        return self.name if self.keep is None else f"{self.name} {self.keep}"


@dataclass(frozen=True)
class BenchRun:
    """One row on one sample, times in milliseconds.

    prefill:     from the call of `generate` to the end of the model's first forward.
    first_token: until the first token of the answer is chosen. latency: until the last is.
    decode:      for each token after the first; None where only one is asked for.
    parts:       of the prefill, adding up to it.
    cache_bytes: of keys and values when the prefill has ended.
    visual:      tokens of the images; after: those left in the end; layer_mean: mean over the layers of those left.
    sent:        those left, and the newlines that stay: what the language model gets.
    """

    prefill: float
    first_token: float
    decode: float | None
    latency: float
    parts: dict[str, float]
    cache_bytes: int
    visual: int
    after: int
    sent: int
    layer_mean: float

    @property
    def pruner_share(self) -> float:
        """Of the prefill: everything that only a pruned one does."""
        return sum(self.parts[name] for name in PRUNER) / self.prefill


@dataclass(frozen=True)
class Measured:
    """A row's runs, round by round, and what it takes whatever the machine, on the first sample."""

    row: BenchRow
    runs: list[BenchRun]
    operations: OperationCounts

    def values(self, name: str) -> list[float]:
        return [value for run in self.runs if (value := getattr(run, name)) is not None]

    def part(self, name: str) -> MedianInterval:
        return median_interval([run.parts[name] for run in self.runs])


@dataclass(frozen=True)
class BenchReport:
    """rows: the unpruned model first."""

    model: str
    clock: str
    new_tokens: int
    weight_bytes: int
    rows: list[Measured]

    @property
    def base(self) -> Measured:
        return self.rows[0]

    def ratio(self, row: Measured, name: str) -> MedianInterval | None:
        """To the unpruned model, round by round, so that a machine that is busy for a while slows both."""
        pairs = zip(row.values(name), self.base.values(name), strict=True)
        ratios = [value / base for value, base in pairs]
        return median_interval(ratios) if ratios else None

    def expected(self, row: Measured) -> float:
        """The ratio of the prefills that the multiply-adds say."""
        return row.operations.multiply_adds / self.base.operations.multiply_adds

    def reached(self, row: Measured) -> float:
        """How much of the speed-up that the multiply-adds say is there: measured over expected."""
        ratio = self.ratio(row, "prefill")
        assert ratio is not None  # Every run has a prefill.
        return self.expected(row) / ratio.median

    @property
    def warnings(self) -> list[str]:
        """Rows that cost more than they save."""
        found = []
        for row in self.rows[1:]:
            ratios = {"prefill": self.ratio(row, "prefill"), "the whole answer": self.ratio(row, "latency")}
            over = [f"{name} {ratio.median:.2f}" for name, ratio in ratios.items() if ratio and ratio.median > 1]
            if over:
                found.append(f"{row.row} costs more than it saves: {' and '.join(over)} of the unpruned model's time")
        return found


def bench(
    name: str,
    model: Any,
    processor: Any,
    methods: Sequence[Method | BenchRow],
    samples: Iterable[Any],
    *,
    clock: Clock,
    guide: Guide | None = None,
    new_tokens: int = 16,
    warmup: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Measure all methods and the unpruned model on the same samples.

    samples: inputs of the model, one prompt each. Everything is counted on the first, before any is timed; the first
    `warmup` do not count.
    progress is told after each run.
    """
    rows = [BenchRow(), *(each if isinstance(each, BenchRow) else BenchRow(each) for each in methods)]
    runs: list[list[BenchRun]] = [[] for _ in rows]
    counted: list[OperationCounts] = []
    bench_ = _Bench(model, processor, guide, clock, new_tokens)
    with torch.inference_mode(), name_model_parts(model):
        for round_, inputs in enumerate(samples):
            inputs = inputs.to(model.device, model.dtype)
            if not round_:
                counted = [bench_.count_operations(row, inputs) for row in rows]
            these: dict[int, BenchRun] = {}
            for index in list(range(len(rows)))[:: -1 if round_ % 2 else 1]:
                these[index] = bench_.run(rows[index], inputs)
                progress()
            # Placeholders count newlines too, which the methods tell apart.
            if len(rows) > 1:
                visual = these[1].visual
                these[0] = replace(these[0], visual=visual, after=visual, layer_mean=float(visual))
            if round_ >= warmup:
                for index, run in these.items():
                    runs[index].append(run)
    if not runs[0]:
        raise ValueError(f"there is nothing to measure: the samples are no more than the {warmup} for warming up")
    weights = sum(weight.nbytes for weight in model.parameters())
    measured = [Measured(*each) for each in zip(rows, runs, counted, strict=True)]
    return BenchReport(name, clock.name, new_tokens, weights, measured)


class _Bench:
    """One model on which rows take turns."""

    def __init__(self, model: Any, processor: Any, guide: Guide | None, clock: Clock, new_tokens: int) -> None:
        self.model = model
        self.processor = processor
        self.guide = guide
        self.clock = clock
        self.new_tokens = new_tokens
        config = adapter_of(model).config
        tokens = (getattr(config, f"{modality}_token_id", None) for modality in ("image", "video"))
        self.placeholders = torch.tensor([token for token in tokens if token is not None], device=model.device)

    def count_operations(self, row: BenchRow, inputs: Any) -> OperationCounts:
        with self._pruned(row):
            return count_operations(lambda: self._generate(inputs, 1))

    def run(self, row: BenchRow, inputs: Any) -> BenchRun:
        hooks, ends = Hooks(), _Ends()
        with self._pruned(row) as pruned, hooks:
            watch = Stopwatch(self.clock)
            hooks.after(self.model, lambda *call: ends.first_forward(watch, call[-1]))
            with listening(watch):
                self._generate(inputs, self.new_tokens, stopping_criteria=[first := _FirstToken(self.clock)])
            last = self.clock.stamp()
            selections = [] if pruned is None else pruned.last
            visual = int(torch.isin(inputs["input_ids"], self.placeholders).sum())
            decode = self.clock.between(first.stamp, last) / (self.new_tokens - 1) if self.new_tokens > 1 else None
            return BenchRun(
                prefill=watch.total,
                first_token=self.clock.between(watch.start, first.stamp),
                decode=decode,
                latency=self.clock.between(watch.start, last),
                parts=watch.parts(),
                cache_bytes=ends.cache_bytes,
                visual=sum(selection.total for selection in selections) or visual,
                after=sum(selection.tokens_after for selection in selections) or visual,
                sent=sum(selection.tokens_sent for selection in selections) or visual,
                layer_mean=sum(selection.tokens_layer_mean for selection in selections) or float(visual),
            )

    def _pruned(self, row: BenchRow) -> Any:
        if self.guide is not None:
            self.guide.forget()
        if row.method is None:
            return nullcontext()
        return attach(self.model, self.processor, method=row.method, guide=self.guide)

    def _generate(self, inputs: Any, tokens: int, **settings: Any) -> Any:
        return self.model.generate(
            **inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, num_beams=1, **settings
        )


class _Ends:
    """What is to be seen when the first forward ends."""

    cache_bytes = 0

    def first_forward(self, watch: Stopwatch, output: Any) -> None:
        if watch.running:
            watch.stop()
            self.cache_bytes = cache_bytes(output.past_key_values)


class _FirstToken(StoppingCriteria):
    """Notes when the first token has been chosen."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.stamp: Any = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self.stamp is None:
            self.stamp = self.clock.stamp()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def cache_bytes(cache: Any) -> int:
    """Bytes of a cache's keys and values, from its own tensors."""
    layers = [part for layer in cache.layers for part in (layer.keys, layer.values)]
    return sum(part.numel() * part.element_size() for part in layers)
