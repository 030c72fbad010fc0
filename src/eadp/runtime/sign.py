"""Which sign a guide needs: are its maps high where the named object is, or everywhere else?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from eadp.core import Box, Grid, Scoring, Selection, TextGuide, VisualTokens, relevance
from eadp.core.boxes import cells_in_boxes
from eadp.methods.base import Need
from eadp.methods.before import BeforeMethod
from eadp.models.prompt import build_prompt

if TYPE_CHECKING:
    from PIL.Image import Image

    from eadp.models.guides import Guide

SIGNS = (+1, -1)
ENOUGH_IMAGES = 8
"""With fewer images, resampling them says nothing about further ones."""


@dataclass(frozen=True)
class Localisation:
    """How well maps locate the boxes, for one image or averaged over several.

    Both have one entry per map: "global" from the pooled text, "dense" from the words that the entropy filter keeps.

    Attributes:
        auc: The probability that a cell inside scores higher than one outside: 1 is perfect, 0.5 is chance, 0 is
            inverted.
        ratio: The mean of the map (min-max normalised to [0, 1]) inside the boxes over its mean outside.
    """

    auc: dict[str, float]
    ratio: dict[str, float]

    @property
    def quality(self) -> float:
        """The mean AUC of the maps."""
        return sum(self.auc.values()) / len(self.auc)


@dataclass(frozen=True)
class SignReport:
    """The result of `diagnose_sign`.

    Attributes:
        images: The number of images.
        by_sign: For +1 and −1, how well the maps locate the boxes, on average over the images.
        sign: The sign that locates them better.
        margin: By how much its mean AUC is higher.
        interval: The 95 % interval of the margin, from resampling the images.
        agreement: The share of the resamples in which the same sign is better.
        guide_sign: The sign that the guide has now, if there is a guide.
    """

    images: int
    by_sign: dict[int, Localisation]
    sign: int
    margin: float
    interval: tuple[float, float]
    agreement: float
    guide_sign: float | None = None

    @property
    def sure(self) -> bool:
        """Whether there are enough images, and the interval excludes 0."""
        return self.images >= ENOUGH_IMAGES and self.interval[0] > 0

    def __str__(self) -> str:
        lines = [f"{'sign':>4}  {'map':<6}  {'AUC':>5}  inside/outside"]
        for sign, found in self.by_sign.items():
            for name in found.auc:
                lines.append(f"{sign:>+4}  {name:<6}  {found.auc[name]:5.3f}  {found.ratio[name]:.2f}")
        low, high = self.interval
        if self.sure:
            verdict = "sure"
        elif self.images < ENOUGH_IMAGES:
            verdict = f"not sure: give at least {ENOUGH_IMAGES} images"
        else:
            verdict = "not sure: the interval contains 0, give more images"
        lines.append(
            f"use sign {self.sign:+d}: AUC better by {self.margin:.3f} (95 %: {low:+.3f} to {high:+.3f}) over "
            f"{self.images} image{'s' * (self.images != 1)}, {verdict}"
        )
        if self.guide_sign is not None:
            advice = ": change it" if self.sure and self.guide_sign != self.sign else ""
            lines.append(f"the guide has {self.guide_sign:+.0f}{advice}")
        return "\n".join(lines)


def diagnose_sign(
    model: nn.Module,
    processor: Any,
    images_with_boxes: Iterable[tuple[Image, str, Sequence[Box]]],
    *,
    guide: Guide | str | None = None,
    prompt: Callable[[str], str] | None = None,
    q: float = 0.5,
) -> SignReport:
    """Measure which sign of the guide locates named objects better, on images with boxes around them.

        print(eadp.diagnose_sign(model, processor, [(image, "the red cup", [(0.1, 0.2, 0.4, 0.5)]), …]))

    Args:
        model: A model as `attach` takes it.
        processor: Its processor.
        images_with_boxes: For each image, the phrase that names the object, and the boxes around it: (top, left,
            bottom, right) as shares of the image's height and width.
        guide: As in `attach`; by default the model's own.
        prompt: Writes the prompt for a phrase, with its image placeholder; by default the chat template does.
        q: The share of the words that the entropy filter keeps.

    Raises:
        ValueError: If there are no images, or an image or a box does not fit.
    """
    from eadp.runtime import attach

    recorder = _Recorder()
    pairs = []
    with torch.no_grad(), attach(model, processor, method=recorder, guide=guide) as pruned:
        for image, phrase, boxes in images_with_boxes:
            recorder.recorded.clear()
            inputs = processor(images=[image], text=_prompt(processor, phrase, prompt), return_tensors="pt")
            with pruned.with_question(phrase):
                model(**inputs.to(model.device, model.dtype))
            [(text, tokens)] = recorder.recorded
            _check_registration(processor, image, tokens)
            plus, minus = (localise(text, tokens, boxes, sign, q) for sign in SIGNS)
            pairs.append((plus, minus))
    if not pairs:
        raise ValueError("there are no images: give some, each with a phrase and the boxes around what it names")
    return replace(report_of(pairs), guide_sign=text.sign)


@dataclass(frozen=True)
class _Recorder(BeforeMethod):
    """Records what a method is given, and keeps one token so that the language model has little to do."""

    needs: ClassVar[frozenset[Need]] = frozenset({"text"})

    recorded: list[tuple[TextGuide, VisualTokens]] = field(default_factory=list)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        assert text is not None  # The runtime gives a text to methods that need one.
        self.recorded.append((text, tokens))
        return Selection(torch.zeros(1, dtype=torch.long), len(tokens), "recorder")


def _prompt(processor: Any, phrase: str, prompt: Callable[[str], str] | None) -> str:
    if prompt is not None:
        return prompt(phrase)
    try:
        return build_prompt(processor, phrase)
    except ValueError as error:
        raise ValueError(f"{error}: pass prompt=, a function that writes the prompt for a phrase") from error


def _check_registration(processor: Any, image: Image, tokens: VisualTokens) -> None:
    """Refuse images that the processor crops or pads to a square, which would move them under their boxes."""
    options = getattr(processor, "image_processor", None)
    squares = getattr(options, "do_center_crop", False) or getattr(options, "do_pad", False)
    [(rows, columns), *crops] = tokens.grids
    if squares and not crops and rows == columns and image.width != image.height:
        raise ValueError(
            f"the processor makes a square of the {image.width}×{image.height} image by cropping or padding, so that "
            "boxes as shares of it would be wrong: give square images"
        )


def localise(text: TextGuide, tokens: VisualTokens, boxes: Sequence[Box], sign: int, q: float = 0.5) -> Localisation:
    """Measure how well the maps of one image locate the boxes with a given sign.

    Of an image with crops only block 0 counts, the whole image.

    Args:
        text: The question. Its own sign is not used.
        tokens: The tokens of the image.
        boxes: The boxes, as in `diagnose_sign`.
        sign: The sign to measure, +1 or −1.
        q: The share of the words that the entropy filter keeps.
    """
    if tokens.aligned is None:
        raise ValueError("tokens.aligned is missing: a sign can only be measured in a space shared with text")
    if len(tokens.grids) > 1 and tokens.layout is None:
        raise ValueError(
            f"boxes lie on one image, but the tokens are {len(tokens.grids)} blocks with no layout: "
            "give images that the processor does not cut into pieces"
        )
    inside = _cells_in_boxes(tokens.grids[0], boxes).to(tokens.aligned.device)
    found = relevance(tokens.aligned[tokens.blocks[0]], text.tokens, text.pooled, sign=sign, scoring=Scoring(q=q))
    maps = {"global": found.global_score, "dense": found.dense_score}
    scores = {name: score for name, score in maps.items() if score is not None}
    return Localisation(
        {name: _auc(score[inside], score[~inside]) for name, score in scores.items()},
        {name: _ratio(score, inside) for name, score in scores.items()},
    )


def _cells_in_boxes(grid: Grid, boxes: Sequence[Box]) -> Tensor:
    inside = cells_in_boxes(grid, boxes)
    if not inside.any() or inside.all():
        problem = "there are no boxes" if not inside.any() else "the boxes cover the whole image"
        raise ValueError(f"{problem}: there must be cells inside and cells outside to compare")
    return inside


def report_of(pairs: Sequence[tuple[Localisation, Localisation]], resamples: int = 2000, seed: int = 0) -> SignReport:
    """Summarise the images, each measured with +1 and with −1.

    Args:
        pairs: The measurements of each image with +1 and with −1.
        resamples: How many times the images are resampled for the interval.
        seed: The seed of the resampling.
    """
    gains = torch.tensor([plus.quality - minus.quality for plus, minus in pairs], dtype=torch.double)
    draws = torch.randint(len(gains), (resamples, len(gains)), generator=torch.Generator().manual_seed(seed))
    sign = +1 if gains.mean() >= 0 else -1
    margins = sign * gains[draws].mean(dim=1)
    low, high = torch.quantile(margins, torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return SignReport(
        images=len(pairs),
        by_sign={each: _mean([pair[i] for pair in pairs]) for i, each in enumerate(SIGNS)},
        sign=sign,
        margin=float(sign * gains.mean()),
        interval=(low, high),
        agreement=float((margins > 0).double().mean()),
    )


def _auc(inside: Tensor, outside: Tensor) -> float:
    higher = inside[:, None] > outside
    equal = inside[:, None] == outside
    return float((higher + 0.5 * equal).double().mean())


def _ratio(score: Tensor, inside: Tensor) -> float:
    above = score - score.min()
    return float(above[inside].mean() / above[~inside].mean().clamp_min(torch.finfo(above.dtype).tiny))


def _mean(found: Sequence[Localisation]) -> Localisation:
    def over_images(values: list[dict[str, float]]) -> dict[str, float]:
        names = [name for name in values[0] if all(name in each for each in values)]
        return {name: sum(each[name] for each in values) / len(values) for name in names}

    return Localisation(over_images([each.auc for each in found]), over_images([each.ratio for each in found]))
