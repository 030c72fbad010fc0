"""Time, memory and multiply-adds of pruning methods and of the unpruned model, measured in one run.

Each sample is one round: every row answers it once, in one order and in the next round in reverse, so that no row
always runs right after the same other one. The timed region is the same for every row: the whole call of
`model.generate` on prepared inputs, with the vision tower, the text guide, the selection and the language model. The
processor and the call of `attach` are excluded. The text guide encodes every question again.
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
from eadp.runtime.choose import BudgetOver
from eadp.runtime.hooks import Hooks
from eadp.utils.statistics import MedianInterval, median_interval

if TYPE_CHECKING:
    from eadp.models.guides import Guide

TIMES = ("prefill", "first_token", "decode", "latency")
"""The fields of a `BenchRun` that are times."""


@dataclass(frozen=True)
class BenchRow:
    """One row of a measurement: a method with its budget, or the unpruned model.

    Attributes:
        method: The method; None for the unpruned model.
        preset: The name of the preset that the method was built from, if any.
    """

    method: Method | None = None
    preset: str | None = None

    @property
    def name(self) -> str:
        """The name as written on a command line: eadp, eadp:published."""
        if self.method is None:
            return ALL_TOKENS
        return self.method.name if self.preset is None else f"{self.method.name}:{self.preset}"

    @property
    def keep(self) -> int | float | None:
        """The budget of the method; None for the unpruned model."""
        return None if self.method is None else self.method.keep

    def __str__(self) -> str:
        return self.name if self.keep is None else f"{self.name} {self.keep}"


@dataclass(frozen=True)
class BenchRun:
    """One row on one sample. Times are in milliseconds.

    Attributes:
        prefill: Time from the call of `generate` to the end of the model's first forward pass.
        first_token: Time from the call until the first token of the answer is chosen.
        decode: Time per token after the first; None if only one token was generated.
        latency: Time from the call until the last token is chosen.
        parts: Time of each part of the prefill. The parts add up to `prefill`.
        cache_bytes: Size of the KV cache at the end of the prefill.
        visual: Number of visual tokens of the images.
        after: Number of visual tokens left after the last cut.
        sent: Number of tokens that the language model receives for the images: `after` and the newline tokens.
        layer_mean: Number of visual tokens, averaged over the layers of the language model.
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
        """The share of the prefill that is spent in parts that only a pruned model has."""
        return sum(self.parts[name] for name in PRUNER) / self.prefill


@dataclass(frozen=True)
class BenchResult:
    """All runs of one row.

    Attributes:
        row: What was measured.
        runs: One run per round.
        operations: Multiply-adds and peak memory on the first sample. They do not depend on the machine.
    """

    row: BenchRow
    runs: list[BenchRun]
    operations: OperationCounts

    def values(self, name: str) -> list[float]:
        """Return a field of every run, without those where it is None."""
        return [value for run in self.runs if (value := getattr(run, name)) is not None]

    def part(self, name: str) -> MedianInterval:
        """Compute the median time of a part of the prefill, in milliseconds."""
        return median_interval([run.parts[name] for run in self.runs])


@dataclass(frozen=True)
class BenchReport:
    """A finished measurement.

    Attributes:
        model: The name of the model.
        clock: The name of the clock, "wall" or "cpu".
        new_tokens: Number of tokens generated per answer.
        weight_bytes: Size of the model's weights.
        results: One result per row, the unpruned model first.
    """

    model: str
    clock: str
    new_tokens: int
    weight_bytes: int
    results: list[BenchResult]

    @property
    def baseline(self) -> BenchResult:
        """The result of the unpruned model."""
        return self.results[0]

    def ratio(self, result: BenchResult, name: str) -> MedianInterval | None:
        """Compute the ratio of a time to the unpruned model's, as a median over the rounds.

        The ratio is taken within each round, so that a machine that is busy for a while slows both sides.

        Args:
            result: The result to compare with the unpruned model.
            name: One of `TIMES`.

        Returns:
            The median with its interval; None if the time was not measured.
        """
        pairs = zip(result.values(name), self.baseline.values(name), strict=True)
        ratios = [value / base for value, base in pairs]
        return median_interval(ratios) if ratios else None

    def expected_ratio(self, result: BenchResult) -> float:
        """Compute the ratio of the prefills' multiply-adds to the unpruned model's."""
        return result.operations.multiply_adds / self.baseline.operations.multiply_adds

    def realized_speedup(self, result: BenchResult) -> float:
        """Compute the measured speed-up of the prefill, divided by the speed-up that the multiply-adds promise."""
        ratio = self.ratio(result, "prefill")
        assert ratio is not None  # Every run has a prefill.
        return self.expected_ratio(result) / ratio.median

    @property
    def warnings(self) -> list[str]:
        """One sentence per row that costs more time than it saves."""
        found = []
        for result in self.results[1:]:
            ratios = {"prefill": self.ratio(result, "prefill"), "the whole answer": self.ratio(result, "latency")}
            over = [f"{name} {ratio.median:.2f}" for name, ratio in ratios.items() if ratio and ratio.median > 1]
            if over:
                found.append(
                    f"{result.row} costs more than it saves: {' and '.join(over)} of the unpruned model's time"
                )
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
    budget_over: BudgetOver = "image",
) -> BenchReport:
    """Measure all methods and the unpruned model on the same samples.

    Args:
        name: The name of the model, for the report.
        model: The model.
        processor: Its processor.
        methods: The methods to measure. The unpruned model is always measured and need not be listed.
        samples: Inputs of the model, one prompt per sample. Operations are counted on the first one before any is
            timed.
        clock: The clock, from `make_clock`.
        guide: The text guide; None to let `attach` find it.
        new_tokens: Number of tokens generated per answer.
        warmup: Number of samples at the start whose times are discarded.
        progress: Called after each run.
        budget_over: See `attach`: "prompt" for clips whose frames a model takes as images.

    Returns:
        The report, with the unpruned model first.

    Raises:
        ValueError: If there are no more samples than `warmup`.
    """
    rows = [BenchRow(), *(each if isinstance(each, BenchRow) else BenchRow(each) for each in methods)]
    runs: list[list[BenchRun]] = [[] for _ in rows]
    counted: list[OperationCounts] = []
    runner = Runner(model, processor, guide, clock, new_tokens, budget_over)
    with torch.inference_mode(), name_model_parts(model):
        for round_, inputs in enumerate(samples):
            inputs = inputs.to(model.device, model.dtype)
            if not round_:
                counted = [runner.count_operations(row, inputs) for row in rows]
            current: dict[int, BenchRun] = {}
            for index in list(range(len(rows)))[:: -1 if round_ % 2 else 1]:
                current[index] = runner.run(rows[index], inputs)
                progress()
            # The unpruned model counts placeholders, which include newlines. The methods tell the two apart.
            if len(rows) > 1:
                visual = current[1].visual
                current[0] = replace(current[0], visual=visual, after=visual, layer_mean=float(visual))
            if round_ >= warmup:
                for index, run in current.items():
                    runs[index].append(run)
    if not runs[0]:
        raise ValueError(
            f"there is nothing to measure: the first {warmup} samples only warm up, and there are no more; "
            "give more samples"
        )
    weights = sum(weight.nbytes for weight in model.parameters())
    results = [BenchResult(*each) for each in zip(rows, runs, counted, strict=True)]
    return BenchReport(name, clock.name, new_tokens, weights, results)


class Runner:
    """Runs rows on one model, one after another."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        guide: Guide | None,
        clock: Clock,
        new_tokens: int,
        budget_over: BudgetOver,
    ) -> None:
        self.model = model
        self.processor = processor
        self.guide = guide
        self.clock = clock
        self.new_tokens = new_tokens
        self.budget_over = budget_over
        config = adapter_of(model).config
        tokens = (getattr(config, f"{modality}_token_id", None) for modality in ("image", "video"))
        self.placeholders = torch.tensor([token for token in tokens if token is not None], device=model.device)

    def count_operations(self, row: BenchRow, inputs: Any) -> OperationCounts:
        """Count the operations of one prefill."""
        with self._attached(row):
            return count_operations(lambda: self._generate(inputs, 1))

    def run(self, row: BenchRow, inputs: Any) -> BenchRun:
        """Time one call of `generate`. The guide forgets its questions first."""
        hooks, prefill_end = Hooks(), _PrefillEnd()
        with self._attached(row) as pruned, hooks:
            watch = Stopwatch(self.clock)
            hooks.after(self.model, lambda *call: prefill_end.record(watch, call[-1]))
            with listening(watch):
                self._generate(inputs, self.new_tokens, stopping_criteria=[first := _FirstTokenStamp(self.clock)])
            last = self.clock.stamp()
            selections = [] if pruned is None else pruned.last
            visual = int(torch.isin(inputs["input_ids"], self.placeholders).sum())
            decode = self.clock.elapsed_ms(first.stamp, last) / (self.new_tokens - 1) if self.new_tokens > 1 else None
            return BenchRun(
                prefill=watch.total,
                first_token=self.clock.elapsed_ms(watch.start, first.stamp),
                decode=decode,
                latency=self.clock.elapsed_ms(watch.start, last),
                parts=watch.parts(),
                cache_bytes=prefill_end.cache_bytes,
                visual=sum(selection.total for selection in selections) or visual,
                after=sum(selection.tokens_after for selection in selections) or visual,
                sent=sum(selection.tokens_sent for selection in selections) or visual,
                layer_mean=sum(selection.tokens_layer_mean for selection in selections) or float(visual),
            )

    def _attached(self, row: BenchRow) -> Any:
        if self.guide is not None:
            self.guide.forget()
        if row.method is None:
            return nullcontext()
        return attach(self.model, self.processor, method=row.method, guide=self.guide, budget_over=self.budget_over)

    def _generate(self, inputs: Any, tokens: int, **settings: Any) -> Any:
        return self.model.generate(
            **inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, num_beams=1, **settings
        )


class _PrefillEnd:
    """Stops the stopwatch and measures the cache when the first forward pass ends."""

    cache_bytes = 0

    def record(self, watch: Stopwatch, output: Any) -> None:
        if watch.running:
            watch.stop()
            self.cache_bytes = cache_bytes(output.past_key_values)


class _FirstTokenStamp(StoppingCriteria):
    """Records when the first token has been chosen. It never stops the generation."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.stamp: Any = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self.stamp is None:
            self.stamp = self.clock.stamp()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def cache_bytes(cache: Any) -> int:
    """Compute the size of a KV cache from its tensors."""
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
