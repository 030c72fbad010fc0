"""Prepare a measurement from a user's settings. Mistakes are reported before the model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eadp.architectures import untrained
from eadp.loading import RANDOM, load_guide, load_model
from eadp.measure.bench import BenchReport, BenchRow, bench
from eadp.measure.samples import BenchSample, pocket_clips, pocket_samples, read_samples
from eadp.measure.stopwatch import Clock, make_clock
from eadp.method_spec import ALL_TOKENS, MethodSpec, build_specs
from eadp.methods import Method
from eadp.models import adapter_of
from eadp.models.prompt import build_clip_inputs
from eadp.utils.images import make_square


@dataclass(frozen=True)
class BenchSettings:
    """The settings of `eadp bench`.

    Attributes:
        model: A name for `load_model`.
        methods: Names of methods, with or without a preset (eadp:published).
        budgets: Budgets of each method: counts or shares.
        samples: Number of samples that are timed.
        data: A file or folder of samples; None for the pocket world.
        question: The question for images of a folder that have none of their own.
        side: Resize every image to a square of this many pixels.
        layers: Shorten a random model to this many layers.
        new_tokens: Number of tokens generated per answer.
        warmup: Number of samples before those that are timed.
        frames: Measure clips of at most this many frames; None for images.
    """

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
    frames: int | None = None


@dataclass(frozen=True)
class Measurement:
    """A measurement that is ready to run.

    Attributes:
        settings: What the user asked for.
        methods: The rows next to the unpruned model.
        samples: The samples, those for the warm-up first.
        model: The model.
        processor: Its processor.
        guide: The text guide; None if no method needs the text.
        clock: The clock.
        remarks: Sentences about what differs from the settings.
    """

    settings: BenchSettings
    methods: list[BenchRow]
    samples: list[BenchSample]
    model: Any
    processor: Any
    guide: Any
    clock: Clock
    remarks: list[str]

    @property
    def runs(self) -> int:
        """The number of runs, warm-up included."""
        return len(self.samples) * (1 + len(self.methods))

    def run(self, progress: Callable[[], None] = lambda: None) -> BenchReport:
        """Measure. `progress` is called after each run."""
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
            budget_over="image" if self.settings.frames is None else "prompt",
        )

    def _inputs(self) -> Iterator[Any]:
        side = self.settings.side
        if side is None and self.settings.model.startswith(RANDOM) and self.settings.data is None:
            side = untrained.image_side(self.model.config)
        for sample in self.samples:
            count = self.settings.frames
            images = [sample.load_image()] if count is None else sample.load_frames(count)
            images = [image if side is None else make_square(image, side) for image in images]
            yield build_clip_inputs(self.model, self.processor, images, sample.question)


def prepare(
    settings: BenchSettings,
    *,
    clock: str = "wall",
    threads: int | None = None,
    dtype: str = "auto",
    device: str | None = None,
    accuracy: Path | None = None,
) -> Measurement:
    """Check the settings, read the samples and load the model.

    Args:
        settings: What to measure.
        clock: "wall" or "cpu".
        threads: Number of torch's threads; None for its default.
        dtype: The type of the weights; "auto" for the checkpoint's own.
        device: "cpu" or "cuda"; None for a GPU if there is one.
        accuracy: A results.json of `eadp eval` for the plot. It is only checked here.

    Returns:
        The measurement, ready to run.

    Raises:
        ValueError: If a setting is wrong, or the model or the samples cannot be read.
    """
    if not settings.methods or not settings.budgets:
        raise ValueError("there is nothing to measure: give at least one method and one budget")
    # The unpruned model is always measured.
    specs = [each for each in build_specs(settings.methods, settings.budgets) if each.method != ALL_TOKENS]
    samples, remarks = _choose_samples(settings)
    if accuracy is not None:
        read_outcomes(accuracy)
    if threads is not None:
        torch.set_num_threads(threads)
    model, processor = load_model(settings.model, dtype=dtype, device=device, layers=settings.layers)
    takes_videos = getattr(model.config, "video_token_id", None) is not None
    if settings.frames is not None and takes_videos and getattr(processor, "video_processor", None) is None:
        raise ValueError(
            f"{settings.model} takes clips as videos, but its processor has no part for videos, which needs "
            "torchvision; leave out --frames, or measure random:llava-onevision-0.5b, which does without"
        )
    family = adapter_of(model).config.model_type
    methods = [Method.from_dict(each.method_dict, family=family) for each in specs]
    guide = load_guide(settings.model, model, processor) if any("text" in each.needs for each in methods) else None
    rows = [BenchRow(method, each.preset) for method, each in zip(methods, specs, strict=True)]
    return Measurement(settings, rows, samples, model, processor, guide, make_clock(clock, model.device), remarks)


def _choose_samples(settings: BenchSettings) -> tuple[list[BenchSample], list[str]]:
    """Return the samples, those for the warm-up first, and remarks about them."""
    wanted = settings.warmup + settings.samples
    if settings.data is None:
        if settings.question is not None:
            raise ValueError("--question goes with --data and a folder of images")
        frames = settings.frames
        return list(pocket_samples(wanted, settings.model) if frames is None else pocket_clips(wanted, frames)), []
    found = read_samples(settings.data, settings.question, settings.frames is not None)
    if len(found) >= wanted:
        return found[:wanted], []
    # With too few samples, the first ones run twice: once to warm up, and once to be timed.
    repeated = [*(found * settings.warmup)[: settings.warmup], *found]
    return repeated, [f"{settings.data} has {len(found)} samples: all of them count, and the first also warm up"]


def read_outcomes(path: Path) -> list[tuple[str, float, float]]:
    """Read method, number of tokens left and accuracy of each outcome in a results.json of `eadp eval`.

    Raises:
        ValueError: If the file cannot be read.
    """
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
            f"{path} is not a results.json of `eadp eval`: cannot read its outcomes ({error!r})"
        ) from error
