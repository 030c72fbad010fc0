"""Which columns of the prompts stay: a method selects from each image's tokens, and its selection becomes columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from eadp.core import Relevance, Selection, TextGuide, VisualTokens, trace
from eadp.methods import BeforeMethod
from eadp.methods.base import Newlines
from eadp.models.layout import ImageLayout
from eadp.models.vision_call import EncodedImage, TowerRows
from eadp.runtime.merge import Merge, Move
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
class Choice:
    """What stays of a batch of prompts.

    Attributes:
        keep: B×L, false for the columns that are dropped.
        merges: The merged rows.
        selections: One per image.
        moves: Newlines that follow the tokens of their frame, where all tokens are renumbered.
    """

    keep: Tensor
    merges: list[Merge]
    selections: list[Selection]
    moves: list[Move] = field(default_factory=list)

    @property
    def changes_nothing(self) -> bool:
        """Whether all columns stay as they are."""
        return not self.merges and bool(self.keep.all())

    def repeated(self, times: int) -> Choice:
        """The same choice for each of `times` beams."""
        if times == 1:
            return self
        merges = [replace(merge, row=merge.row * times + beam) for merge in self.merges for beam in range(times)]
        moves = [replace(move, row=move.row * times + beam) for move in self.moves for beam in range(times)]
        return replace(self, keep=self.keep.repeat_interleave(times, dim=0), merges=merges, moves=moves)


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

    def merge(self, row: int, columns: Tensor, vision: VisionSide) -> Merge | None:
        """The merge that the selection asks for, if any.

        Args:
            row: The row of the batch.
            columns: N, the columns of the images' tokens.
            vision: The vision side of the model, with the projector.
        """
        selection, downsampled = self.selection, self.downsampled
        if selection.merge is None:
            return None
        in_tower = selection.merge_space == "tower"
        return Merge(
            row,
            columns,
            columns[selection.indices.cpu()],
            selection.merge,
            extra=None if downsampled is None else downsampled.rows,
            deepstack=() if downsampled is None else downsampled.deepstack,
            rows=None if selection.rows is None else selection.rows.cpu(),
            tower=self.tower_rows if in_tower else None,
            project=vision.project if in_tower else None,
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

    def choose(self, context: PrefillContext, embeddings: Tensor) -> Choice:
        """Choose the columns that stay.

        Args:
            context: The images and questions of the prompts.
            embeddings: B×L×d, as the language model would receive them, before beams.
        """
        keep = torch.ones(embeddings.shape[:2], dtype=torch.bool)
        merges, selections, moves = [], [], []
        texts: dict[int, TextGuide | None] = {}
        for group in self.group_by_budget(context.images):
            row = group[0].row
            if self.guide is not None and row not in texts:
                with trace.part("text guide"):
                    texts[row] = _to_device(self.encode_question(context.question(row)), embeddings.device)
            images = [placed.image for placed in group]
            columns = torch.cat([placed.token_columns for placed in group])
            features = embeddings[row, columns.to(embeddings.device)]
            newlines = torch.cat([placed.columns[placed.layout.newline_slots] for placed in group])
            newline_rows = embeddings[row, newlines.to(features.device)]
            chosen = self.select(images, features, texts.get(row), newline_rows)
            if (merge := chosen.merge(row, columns, self.vision)) is not None:
                merges.append(merge)
            for placed, part in zip(group, split_selection(chosen.selection, images), strict=True):
                is_whole = len(part) == part.total and part.merge is None
                newlines_kept: Newlines = "all" if is_whole else self.newlines
                kept = kept_slots(placed.layout, part.indices.cpu(), newlines_kept, part.newlines)
                keep[row, placed.columns] = kept
                if not is_whole and self.moves_newlines(placed.layout):
                    slots = placed.layout.with_newlines_after_frames(kept.nonzero().flatten())
                    moves.append(Move(row, placed.columns[slots]))
                selections.append(replace(part, newlines=int(kept[placed.layout.newline_slots].sum())))
        return Choice(keep, merges, selections, moves)

    def moves_newlines(self, layout: ImageLayout) -> bool:
        """Whether the newlines of a clip's frames follow the frames' kept tokens."""
        is_all = self.newlines == "all" and bool(len(layout.newline_slots))
        return self.method.newlines_after_frames and layout.is_clip and is_all

    def encode_question(self, question: str) -> TextGuide | None:
        """Encode a question as the method's release gives it to the text encoder; None without a guide."""
        if self.guide is None:
            return None
        return self.guide.encode(self.method.text_to_encode(question), self.method.text_layout)

    def group_by_budget(self, images: list[PlacedImage]) -> list[list[PlacedImage]]:
        """Group the images that share a budget."""
        if self.budget_over == "image":
            return [[image] for image in images]
        rows: dict[int, list[PlacedImage]] = {}
        for image in images:
            rows.setdefault(image.row, []).append(image)
        return list(rows.values())

    def select(
        self,
        images: list[EncodedImage],
        features: Tensor,
        text: TextGuide | None,
        newline_rows: Tensor | None = None,
    ) -> GroupSelection:
        """Run the method on images that share a budget.

        Args:
            images: The images.
            features: N×d, their tokens as the language model would receive them.
            text: The question, for methods that read it.
            newline_rows: R×d, their newlines, for methods that also select among those.
        """
        method, total = self.method, len(features)
        if self._keeps_all(total):
            if not method.may_keep_fewer:
                note = f"all {total} tokens stay: no more than keep={method.keep}"
                return GroupSelection(Selection(torch.arange(total), total, method.name, notes=(note,)))
            method = replace(method, keep=total)
        with trace.part("vision tower"):
            tower_rows = join_tower_rows(images)
            downsampled = encode_again(self.vision, images, method) if "pixels" in method.needs else None
        tokens = VisualTokens(
            features,
            None if self.guide is None else self._align(images, features, self.guide),
            [grid for image in images for grid in image.layout.grids],
            images[0].layout.layout if len(images) == 1 else None,
            join_attention(images),
            tower=None if tower_rows is None else tower_rows.rows.detach().to(features.device),
            tower_cls=_detached_cls(tower_rows, features.device),
            tower_features=_joined(features.device, [image.tower_features for image in images]),
            padding=_joined(features.device, [image.padding for image in images]),
            sequence=_sequence_ranks(images, features.device),
            newlines=newline_rows if self.newlines == "chosen" else None,
            downsampled=None if downsampled is None else downsampled.rows,
            downsampled_grids=() if downsampled is None else downsampled.grids,
            is_clip=_is_clip([image.layout for image in images]),
        )
        with trace.part("selection"):
            selection = check_selection(method.select(tokens, text), tokens)
        return GroupSelection(selection, tower_rows, downsampled)

    def _keeps_all(self, total: int) -> bool:
        keep = self.method.keep
        if keep is None or isinstance(keep, int):
            return keep is not None and keep >= total
        return self.method.count_to_keep(total) == total

    @trace.part("text guide")
    def _align(self, images: list[EncodedImage], features: Tensor, guide: Guide) -> Tensor:
        """N×c, the tokens in the space that they share with the question."""
        if guide.space == "language":
            return guide.align(features).to(features.device)
        aligned = []
        for image in images:
            if image.states is None:
                raise ValueError(
                    f"{type(guide).__name__} aligns hidden states of the vision tower, and this model has none that "
                    "lie in a space shared with text; give a guide with space='language', such as EmbeddingGuide"
                )
            aligned.append(self.vision.arrange(image.layout, guide.align(image.states)))
        return torch.cat(aligned).to(features.device)


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


def _sequence_ranks(images: Sequence[EncodedImage], device: torch.device) -> Tensor | None:
    """N, the rank of each token of an image in the sequence; None for several images, which follow each other."""
    return images[0].layout.slots.argsort().argsort().to(device) if len(images) == 1 else None


def kept_slots(layout: ImageLayout, kept: Tensor, newlines: Newlines, chosen: int = 0) -> Tensor:
    """Mark the slots of an image that stay.

    Args:
        layout: The layout of the image.
        kept: The tokens that stay.
        newlines: Which newlines stay.
        chosen: How many newlines the method itself selected.

    Returns:
        `layout.length` booleans.
    """
    stay = torch.ones(layout.length, dtype=torch.bool)
    stay[layout.slots] = False
    stay[layout.slots[kept]] = True
    newline_slots = layout.newline_slots
    if newlines == "none":
        stay[newline_slots] = False
    elif newlines == "kept rows":
        stay[newline_slots] = torch.isin(newline_slots, layout.newlines[kept])
    elif newlines == "chosen":
        # All newlines are the same row, so the first ones can stand for any.
        stay[newline_slots[chosen:]] = False
    return stay


def _to_device(text: TextGuide | None, device: torch.device) -> TextGuide | None:
    """The text where the features are: its encoder may be on another device."""

    def moved(part: Tensor | Sequence[Tensor] | None) -> Tensor | list[Tensor] | None:
        if part is None or isinstance(part, Tensor):
            return None if part is None else part.to(device)
        return [each.to(device) for each in part]

    return None if text is None else replace(text, tokens=moved(text.tokens), pooled=moved(text.pooled))


def check_selection(selection: Selection, tokens: VisualTokens) -> Selection:
    """Return the selection if the runtime can carry it out.

    Raises:
        ValueError: If its indices, weights or rows do not fit the tokens.
    """
    indices, merge, total = selection.indices, selection.merge, len(tokens)
    more_sources = tokens.tower_cls if selection.merge_space == "tower" else tokens.downsampled
    sources = total if more_sources is None else total + len(more_sources)
    if selection.total != total:
        raise ValueError(f"{selection.method} selected from {selection.total} tokens, but was given {total}")
    if indices.ndim != 1 or not len(indices) or bool((indices.diff() <= 0).any()):
        raise ValueError(f"{selection.method} must return at least one index, sorted and without repeats")
    if int(indices[0]) < 0 or int(indices[-1]) >= total:
        raise ValueError(f"{selection.method} returned indices outside 0…{total - 1}")
    if merge is not None and merge.shape not in ((len(indices), total), (len(indices), sources)):
        raise ValueError(f"{selection.method} must merge with {len(indices)}×{total} weights, got {tuple(merge.shape)}")
    if merge is not None and selection.merge_space == "tower" and tokens.tower is None:
        raise ValueError(f"{selection.method} merges before the projector, but was given no rows of the tower")
    if selection.rows is not None:
        own = selection.rows[selection.rows >= 0]
        stand_for_kept = len(own.unique()) == len(own) and bool(torch.isin(own, indices).all())
        if merge is None or len(selection.rows) != len(indices) or not stand_for_kept:
            raise ValueError(
                f"{selection.method} must say for each of its {len(indices)} merged rows which of the kept tokens it "
                "stands for, no token twice, or −1"
            )
    return selection


def split_selection(selection: Selection, images: Sequence[EncodedImage]) -> list[Selection]:
    """Split the selection from several images under one budget into one selection per image."""
    if len(images) == 1:
        return [selection]
    ends = list(accumulate(len(image) for image in images))
    blocks = list(accumulate((len(image.layout.grids) for image in images), initial=0))
    note = f"one budget over {len(images)} images; coverage and bound are theirs together"
    return [
        _part(selection, start, end, slice(first, last), note)
        for start, end, first, last in zip([0, *ends], ends, blocks, blocks[1:], strict=False)
    ]


def _part(selection: Selection, start: int, end: int, blocks: slice, note: str) -> Selection:
    """The selection among the tokens from `start` to `end`, which are in these blocks."""

    def inside(indices: Tensor) -> Tensor:
        return (indices >= start) & (indices < end)

    order, merge, rows = selection.order, selection.merge, selection.rows
    # The merged rows are assigned to the images in turn, to each as many as it keeps slots.
    here = inside(selection.indices)
    if merge is not None:
        more_sources = merge[here, selection.total :]
        more_sources = more_sources[:, blocks] if selection.merge_space == "tower" else more_sources
        merge = torch.cat([merge[here, start:end], more_sources], dim=1)
    return replace(
        selection,
        indices=selection.indices[here] - start,
        total=end - start,
        order=None if order is None else order[inside(order)] - start,
        gains=None if order is None or selection.gains is None else selection.gains[inside(order)],
        quotas=selection.quotas[blocks],
        scores=None if selection.scores is None else selection.scores[start:end],
        merge=merge,
        rows=None if rows is None else torch.where(inside(rows[here]), rows[here] - start, -1),
        relevance=None if selection.relevance is None else _relevance_part(selection.relevance, start, end),
        notes=(*selection.notes, note),
    )


def _relevance_part(relevance: Relevance, start: int, end: int) -> Relevance:
    """The relevance of the tokens from `start` to `end`."""
    per_token = ("dense_score", "global_score", "fused", "score", "smoothed", "polarized")
    parts: dict[str, Any] = {name: getattr(relevance, name) for name in per_token}
    parts = {name: None if part is None else part[start:end] for name, part in parts.items()}
    return replace(
        relevance,
        similarity=relevance.similarity[:, start:end],
        weights=relevance.weights[:, start:end],
        **parts,
    )
