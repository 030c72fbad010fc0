"""From what a user asks for to a measurement that can run: every mistake is told before the model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eadp.architectures import untrained
from eadp.loading import RANDOM, load_guide, load_model
from eadp.measure import samples
from eadp.measure.bench import BenchReport, BenchRow, bench
from eadp.measure.stopwatch import Clock
from eadp.measure.stopwatch import clock as clock_of
from eadp.method_spec import ALL_TOKENS, MethodSpec, build_specs
from eadp.methods import Method
from eadp.models import adapter_of
from eadp.models.prompt import build_inputs
from eadp.utils.images import make_square


@dataclass(frozen=True)
class BenchSettings:
    """See `eadp bench --help`."""

    model: str
    methods: list[str]
    budgets: list[int | float]
    samples: int
    data: Path | None = None
    question: str | None = None
    side: int | None = None
    layers: int | None = None
    new_tokens: int = 16
    warmup: int = 2


@dataclass(frozen=True)
class Measurement:
    """Ready to run. remarks: what is done otherwise than asked."""

    settings: BenchSettings
    methods: list[BenchRow]
    asked: list[samples.BenchSample]
    model: Any
    processor: Any
    guide: Any
    clock: Clock
    remarks: list[str]

    @property
    def runs(self) -> int:
        return len(self.asked) * (1 + len(self.methods))

    def run(self, progress: Callable[[], None] = lambda: None) -> BenchReport:
        return bench(
            self.settings.model,
            self.model,
            self.processor,
            self.methods,
            self._inputs(),
            clock=self.clock,
            guide=self.guide,
            new_tokens=self.settings.new_tokens,
            warmup=self.settings.warmup,
            progress=progress,
        )

    def _inputs(self) -> Iterator[Any]:
        side = self.settings.side
        if side is None and self.settings.model.startswith(RANDOM) and self.settings.data is None:
            side = untrained.image_side(self.model.config)
        for each in self.asked:
            image = each.load_image()
            yield build_inputs(self.processor, [image if side is None else make_square(image, side)], [each.question])


def prepare(
    settings: BenchSettings,
    *,
    clock: str = "wall",
    threads: int | None = None,
    dtype: str = "auto",
    device: str | None = None,
    accuracy: Path | None = None,
) -> Measurement:
    if not settings.methods or not settings.budgets:
        raise ValueError("there is nothing to measure: give at least one method and one budget")
    # The unpruned model is always measured.
    chosen = [each for each in build_specs(settings.methods, settings.budgets) if each.method != ALL_TOKENS]
    asked, remarks = _asked(settings)
    if accuracy is not None:
        read_outcomes(accuracy)
    if threads is not None:
        torch.set_num_threads(threads)
    model, processor = load_model(settings.model, dtype=dtype, device=device, layers=settings.layers)
    family = adapter_of(model).config.model_type
    methods = [Method.from_dict(each.method_dict, family=family) for each in chosen]
    guide = load_guide(settings.model, model, processor) if any("text" in each.needs for each in methods) else None
    rows = [BenchRow(method, each.preset) for method, each in zip(methods, chosen, strict=True)]
    return Measurement(settings, rows, asked, model, processor, guide, clock_of(clock, model.device), remarks)


def _asked(settings: BenchSettings) -> tuple[list[samples.BenchSample], list[str]]:
    """The samples for warming up and those that count."""
    wanted = settings.warmup + settings.samples
    if settings.data is None:
        if settings.question is not None:
            raise ValueError("--question goes with --data and a folder of pictures")
        return list(samples.drawn_samples(wanted)), []
    found = samples.read_samples(settings.data, settings.question)
    if len(found) >= wanted:
        return found[:wanted], []
    # The first are asked twice rather than left out: what counts is measured after it is warm.
    asked = [*(found * settings.warmup)[: settings.warmup], *found]
    return asked, [f"{settings.data} has {len(found)} samples: all of them count, and the first also warm up"]


def read_outcomes(path: Path) -> list[tuple[str, float, float]]:
    """Method, tokens left and accuracy of each outcome in a results.json of `eadp eval`."""
    try:
        return [
            (
                MethodSpec(str(each["method"]), options=each.get("options", {})).name,
                float(each["mean_tokens"]),
                float(each["accuracy"]),
            )
            for each in json.loads(path.read_text())["outcomes"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no results.json of `eadp eval`: its outcomes cannot be read ({error!r})"
        ) from error
