"""EADP on a device: selections whose figures are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eadp.core import FacilityLocationResult, Relevance, Selection, TextGuide, VisualTokens
from eadp.core.block_layout import BlockLayout
from eadp.core.deferred import defer
from eadp.core.image_cover import ImageCover, cover_images
from eadp.core.types import count_in_blocks
from eadp.methods._blank import ALIKE
from eadp.methods._on_device import NOT_FINITE, count_within_images, spread_alike


def require_text(tokens: VisualTokens, text: TextGuide | None) -> tuple[Tensor, TextGuide]:
    """Return the tokens in the space of the text, and the text."""
    if text is None:
        raise ValueError("EADP needs the question: give a TextGuide, or use a method that needs no text")
    if tokens.aligned is None:
        raise ValueError("EADP needs `aligned`: the visual tokens in the space of the text")
    return tokens.aligned, text


@dataclass(frozen=True)
class ScoredImages:
    """Several images on the device, scored.

    Attributes:
        batch: The images.
        texts: The question of each image.
        scored: The relevance of each image, before smoothing.
        smoothed: N, the smoothed maps of all images.
        weights: N, the polarized maps of all images.
        rows: N×d, the rows by which the tokens of all images represent each other.
        layout: Where the blocks of all images lie among the tokens.
        blocks: The number of blocks of each image.
        constant_notes: The note on each image if its map is constant.
    """

    batch: Sequence[VisualTokens]
    texts: Sequence[TextGuide]
    scored: Sequence[Relevance]
    smoothed: Tensor
    weights: Tensor
    rows: Tensor
    layout: BlockLayout
    blocks: Sequence[int]
    constant_notes: Sequence[str]

    def tokens_of(self, number: int) -> slice:
        """The range of an image's tokens among those of all images."""
        start = sum(len(tokens) for tokens in self.batch[:number])
        return slice(start, start + len(self.batch[number]))


def select_by_quota(
    method: str, images: ScoredImages, quotas: Sequence[int] | Tensor, budgets: Sequence[int], backend: str
) -> list[Selection]:
    """Return one selection per image, without waiting for the device.

    Args:
        method: The method's name.
        images: The scored images.
        quotas: The number of tokens to pick in each block of all images.
        budgets: Their sum for each image.
        backend: The solver.
    """
    covered = cover_images(images.rows, images.weights, images.layout, images.blocks, quotas, budgets, backend=backend)
    return DeviceSelection(method, images, covered).selections()


@dataclass(frozen=True)
class DeviceSelection:
    """What EADP selected from several images, on the device.

    Attributes:
        method: The method's name.
        images: The images.
        covered: The picks.
    """

    method: str
    images: ScoredImages
    covered: ImageCover

    def selections(self) -> list[Selection]:
        """Return one selection per image. Nothing waits for the device until their figures are asked for."""
        images = self.images
        figures = ImageFigures(self.method, images.scored, self.is_blank, self.covered, images.constant_notes)
        indices = self._indices().split(list(self.covered.budgets))
        return [self._selection(number, indices[number], figures) for number in range(len(images.batch))]

    def _selection(self, number: int, indices: Tensor, figures: ImageFigures) -> Selection:
        # What a selection refers to lives as long as it does: not the images.
        images, own = self.images, self.images.tokens_of(number)
        smoothed, weights = images.smoothed[own], images.weights[own]
        words, scored, blocks = images.texts[number].words, images.scored[number], images.batch[number].blocks

        def deferred(compute: Callable[[FacilityLocationResult], Any]) -> Any:
            return defer(lambda: compute(figures.of(number)))

        def order(result: FacilityLocationResult) -> Tensor:
            return indices if figures.is_blank[number] else result.indices

        def relevance(_: FacilityLocationResult) -> Relevance:
            return replace(
                scored,
                smoothed=smoothed,
                polarized=weights,
                words=None if words is None else tuple(words),
                notes=figures.relevance_notes(number),
            )

        return Selection(
            indices,
            own.stop - own.start,
            self.method,
            order=deferred(order),
            gains=deferred(lambda result: result.gains),
            coverage=deferred(lambda result: result.coverage),
            bound=deferred(lambda result: result.bound),
            quotas=deferred(lambda _: count_in_blocks(indices.cpu(), blocks)),
            scores=weights,
            relevance=deferred(relevance),
            notes=deferred(lambda _: figures.notes(number)),
            problem=defer(lambda: figures.problem(number)),
        )

    @cached_property
    def is_blank(self) -> Tensor | None:
        """Which images neither text nor features tell the tokens of apart, as a tensor on the device.

        None where that cannot be: one token of each block represents the whole block, and no more are picked.
        """
        covered = self.covered
        if all(blocks >= budget for blocks, budget in zip(covered.blocks, covered.budgets, strict=True)):
            return None
        constants = [each.is_constant for each in self.images.scored if each.is_constant is not None]
        is_constant = constants[0][None] if len(constants) == 1 else torch.stack(constants)
        limits = [
            blocks if blocks < budget else -1 for blocks, budget in zip(covered.blocks, covered.budgets, strict=True)
        ]
        alike = torch.tensor(limits).to(is_constant.device) if len({*limits}) > 1 else limits[0]
        return is_constant & (covered.count_gaining() <= alike)

    def _indices(self) -> Tensor:
        """The kept tokens of all images, counted within each image."""
        kept = spread_alike(self.covered.cover.indices, self.is_blank, self.images.batch, self.covered.budgets)
        return count_within_images(kept, self.images.batch, self.covered.budgets)


@dataclass(frozen=True)
class ImageFigures:
    """The figures of several images, which are read back together when the first is asked for."""

    method: str
    scored: Sequence[Relevance]
    blank: Tensor | None
    covered: ImageCover
    constant_notes: Sequence[str]

    @cached_property
    def is_blank(self) -> list[bool]:
        """Which images had tokens that are all alike."""
        return [False] * len(self.scored) if self.blank is None else self.blank.tolist()

    def problem(self, number: int) -> str | None:
        """What was wrong with the input for an image."""
        is_valid = self.covered.results[number] is not None and bool(self.scored[number].fused.isfinite().all())
        return None if is_valid else NOT_FINITE.format(method=self.method)

    def of(self, number: int) -> FacilityLocationResult:
        """The figures of an image.

        Raises:
            ValueError: If its input was not finite.
        """
        result = self.covered.results[number]
        if (problem := self.problem(number)) is not None or result is None:
            raise ValueError(problem)
        return result

    def relevance_notes(self, number: int) -> tuple[str, ...]:
        """The notes on the relevance of an image."""
        scored = self.scored[number]
        is_constant = scored.is_constant is not None and bool(scored.is_constant)
        return (*scored.notes, self.constant_notes[number]) if is_constant else scored.notes

    def notes(self, number: int) -> tuple[str, ...]:
        """The notes on the selection from an image."""
        notes = self.relevance_notes(number)
        return (*notes, ALIKE) if self.is_blank[number] else notes
