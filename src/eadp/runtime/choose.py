"""Which tokens stay: a method selects from the tokens of each image, or of images that share a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, trace
from eadp.methods import BeforeMethod
from eadp.methods.base import Newlines
from eadp.models.geometry import arrange_images
from eadp.models.layout import ImageLayout
from eadp.models.vision_call import EncodedImage, TowerRows
from eadp.runtime.kept_columns import Choice, choose_columns, flat_columns, flat_newline_columns
from eadp.runtime.merge import Merge
from eadp.runtime.selections import check_selection
from eadp.runtime.vision import (
    DownsampledBlocks,
    VisionSide,
    encode_again,
    join_attention,
    join_per_token,
    join_tower_rows,
)
from eadp.runtime.vision_capture import PlacedImage, PrefillContext

if TYPE_CHECKING:
    from eadp.models.guides.base import Guide

BudgetOver = Literal["image", "prompt"]
"""What one budget is for: each image, or all images of a prompt together."""


@dataclass(frozen=True)
class Budget:
    """Images that share a budget.

    Attributes:
        images: The images.
        features: N×d, their tokens as the language model would receive them.
        text: The question, for methods that read it.
        newline_rows: R×d, their newlines, for methods that also select among those.
    """

    images: Sequence[EncodedImage]
    features: Tensor
    text: TextGuide | None = None
    newline_rows: Tensor | None = None


@dataclass(frozen=True)
class GroupSelection:
    """The selection from images that share a budget, and the rows that it may merge besides their tokens.

    Attributes:
        selection: What the method returned.
        tower_rows: The tokens before the projector, for methods that merge them.
        downsampled: The blocks at another resolution, for methods that need them.
    """

    selection: Selection
    tower_rows: TowerRows | None = None
    downsampled: DownsampledBlocks | None = None

    def merge(self, row: int, columns: Tensor, vision: VisionSide, first_kept: int = 0) -> Merge | None:
        """The merge that the selection asks for, if any.

        Args:
            row: The row of the batch.
            columns: N, the columns of the images' tokens.
            vision: The vision side of the model, with the projector.
            first_kept: How many columns are kept for the groups before this one.
        """
        selection, downsampled = self.selection, self.downsampled
        if selection.merge is None:
            return None
        in_tower = selection.merge_space == "tower"
        return Merge(
            row,
            columns,
            selection.indices,
            selection.merge,
            extra=None if downsampled is None else downsampled.rows,
            deepstack=() if downsampled is None else downsampled.deepstack,
            rows=selection.rows,
            tower=self.tower_rows if in_tower else None,
            project=vision.project if in_tower else None,
            first_kept=first_kept,
        )


class Chooser:
    """Runs a method on the images of a batch."""

    def __init__(
        self,
        method: BeforeMethod,
        guide: Guide | None,
        vision: VisionSide,
        budget_over: BudgetOver = "image",
        newlines: Newlines | None = None,
    ) -> None:
        """Set up the chooser.

        Args:
            method: A method that prunes before the language model.
            guide: The text guide, for methods that read the question.
            vision: The vision side of the model.
            budget_over: What one budget is for.
            newlines: Which newline tokens stay. None: those that the method's release keeps.
        """
        self.method = method
        self.guide = guide
        self.vision = vision
        self.budget_over = budget_over
        self.newlines: Newlines = newlines or method.newlines

    def choose(self, context: PrefillContext, embeddings: Tensor, texts: dict[int, TextGuide]) -> Choice:
        """Choose the columns that stay.

        Args:
            context: The images of the prompts.
            embeddings: B×L×d, as the language model would receive them, before beams.
            texts: The question of each row with images, for methods that read it.
        """
        groups = self.group_by_budget(context.images)
        rows, length = embeddings.shape[:2]
        columns = [flat_columns(group, length) for group in groups]
        flat = embeddings.flatten(0, 1)
        features = flat[torch.cat(columns).to(flat.device)].split([len(each) for each in columns])
        newline_rows: Sequence[Tensor | None] = [None] * len(groups)
        if self.newlines == "chosen":
            newlines = [flat_newline_columns(group, length) for group in groups]
            newline_rows = flat[torch.cat(newlines).to(flat.device)].split([len(each) for each in newlines])
        budgets = [
            Budget([placed.image for placed in group], part, texts.get(group[0].row), newlines)
            for group, part, newlines in zip(groups, features, newline_rows, strict=True)
        ]
        chosen = self.select_all(budgets)
        first_kept = accumulate((len(each.selection.indices) for each in chosen), initial=0)
        merges = [
            each.merge(group[0].row, torch.cat([placed.token_columns for placed in group]), self.vision, first)
            for group, each, first in zip(groups, chosen, first_kept, strict=False)
        ]
        return choose_columns(
            groups,
            [each.selection for each in chosen],
            [merge for merge in merges if merge is not None],
            (rows, length),
            context.valid,
            self.newlines,
            self.moves_newlines,
        )

    def moves_newlines(self, layout: ImageLayout) -> bool:
        """Whether the newlines of a clip's frames follow the frames' kept tokens."""
        is_all = self.newlines == "all" and bool(len(layout.newline_slots))
        return self.method.newlines_after_frames and layout.is_clip and is_all

    def encode_question(self, question: str, device: torch.device) -> TextGuide:
        """Encode a question as the method's release gives it to the text encoder, for tokens on this device.

        Raises:
            ValueError: If the method reads no question.
        """
        if self.guide is None:
            raise ValueError(f"{self.method.name} reads no question")
        text = self.guide.encode(self.method.text_to_encode(question), self.method.text_layout)
        return _to_device(text, device)

    def group_by_budget(self, images: list[PlacedImage]) -> list[list[PlacedImage]]:
        """Group the images that share a budget."""
        if self.budget_over == "image":
            return [[image] for image in images]
        rows: dict[int, list[PlacedImage]] = {}
        for image in images:
            rows.setdefault(image.row, []).append(image)
        return list(rows.values())

    def select(self, budget: Budget) -> GroupSelection:
        """Run the method on images that share a budget."""
        (chosen,) = self.select_all([budget])
        return chosen

    def select_all(self, budgets: Sequence[Budget]) -> list[GroupSelection]:
        """Run the method on the images of every budget, on a device on all of them at once."""
        chosen: dict[int, GroupSelection] = {}
        batches: dict[int | None, list[int]] = {}
        for number, budget in enumerate(budgets):
            total, method = len(budget.features), self.method
            keeps_all = self._keeps_all(total)
            if keeps_all and not method.may_keep_fewer:
                note = f"all {total} tokens stay: no more than keep={method.keep}"
                chosen[number] = GroupSelection(Selection(torch.arange(total), total, method.name, notes=(note,)))
            else:
                batches.setdefault(total if keeps_all else None, []).append(number)
        for keep, numbers in batches.items():
            method = self.method if keep is None else replace(self.method, keep=keep)
            selected = self._select_batch(method, [budgets[number] for number in numbers])
            chosen |= dict(zip(numbers, selected, strict=True))
        return [chosen[number] for number in range(len(budgets))]

    def _select_batch(self, method: BeforeMethod, budgets: Sequence[Budget]) -> list[GroupSelection]:
        with trace.part("vision tower"):
            tower_rows = [join_tower_rows(budget.images) for budget in budgets]
            downsampled = [
                encode_again(self.vision, budget.images, method) if "pixels" in method.needs else None
                for budget in budgets
            ]
        aligned = [None] * len(budgets) if self.guide is None else self._align(self.guide, budgets)
        tokens = [self._visual_tokens(*each) for each in zip(budgets, aligned, tower_rows, downsampled, strict=True)]
        with trace.part("selection"):
            selections = method.select_batch(tokens, [budget.text for budget in budgets])
            selections = [check_selection(*each) for each in zip(selections, tokens, strict=True)]
        return [GroupSelection(*each) for each in zip(selections, tower_rows, downsampled, strict=True)]

    def _visual_tokens(
        self,
        budget: Budget,
        aligned: Tensor | None,
        tower_rows: TowerRows | None,
        downsampled: DownsampledBlocks | None,
    ) -> VisualTokens:
        images, features = budget.images, budget.features
        return VisualTokens(
            features,
            aligned,
            [grid for image in images for grid in image.layout.grids],
            images[0].layout.layout if len(images) == 1 else None,
            join_attention(images),
            tower=None if tower_rows is None else tower_rows.rows.detach().to(features.device),
            tower_cls=_detached_cls(tower_rows, features.device),
            tower_features=_joined(features.device, [image.tower_features for image in images]),
            padding=_joined(features.device, [image.padding for image in images]),
            sequence=_sequence_ranks(images),
            newlines=budget.newline_rows if self.newlines == "chosen" else None,
            downsampled=None if downsampled is None else downsampled.rows,
            downsampled_grids=() if downsampled is None else downsampled.grids,
            is_clip=_is_clip([image.layout for image in images]),
        )

    def _keeps_all(self, total: int) -> bool:
        keep = self.method.keep
        if keep is None or isinstance(keep, int):
            return keep is not None and keep >= total
        return self.method.count_to_keep(total) == total

    @trace.part("text guide")
    def _align(self, guide: Guide, budgets: Sequence[Budget]) -> Sequence[Tensor]:
        """N×c for each budget, the tokens in the space that they share with the question."""
        device = budgets[0].features.device
        if guide.space == "language":
            return [guide.align(budget.features).to(device) for budget in budgets]
        images = [image for budget in budgets for image in budget.images]
        states = [image.states for image in images if image.states is not None]
        if len(states) < len(images):
            raise ValueError(
                f"{type(guide).__name__} aligns hidden states of the vision tower, and this model has none that "
                "lie in a space shared with text; give a guide with space='language', such as EmbeddingGuide"
            )
        cells = guide.align(states[0] if len(states) == 1 else torch.cat(states))
        aligned = arrange_images(self.vision.arrange, [image.layout for image in images], cells).to(device)
        return aligned.split([len(budget.features) for budget in budgets])


def _is_clip(layouts: Sequence[ImageLayout]) -> bool:
    """Whether the blocks are frames: of one clip, or images of one size that share a budget."""
    are_images = len(layouts) > 1 and all(len(layout.grids) == 1 for layout in layouts)
    return (len(layouts) == 1 and layouts[0].is_clip) or (
        are_images and len({layout.grids[0] for layout in layouts}) == 1
    )


def _detached_cls(tower_rows: TowerRows | None, device: torch.device) -> Tensor | None:
    if tower_rows is None or tower_rows.cls is None:
        return None
    return tower_rows.cls.detach().to(device)


def _joined(device: torch.device, parts: Sequence[Tensor | None]) -> Tensor | None:
    joined = join_per_token(parts)
    return None if joined is None else joined.detach().to(device)


def _sequence_ranks(images: Sequence[EncodedImage]) -> Tensor | None:
    """N, the rank of each token of an image in the sequence; None for several images, which follow each other."""
    return images[0].layout.slots.argsort().argsort() if len(images) == 1 else None


def _to_device(text: TextGuide, device: torch.device) -> TextGuide:
    """The text where the features are: its encoder may be on another device."""

    def moved(part: Tensor | Sequence[Tensor] | None) -> Tensor | list[Tensor] | None:
        if part is None or isinstance(part, Tensor):
            return None if part is None else part.to(device)
        return [each.to(device) for each in part]

    return replace(text, tokens=moved(text.tokens), pooled=moved(text.pooled))
