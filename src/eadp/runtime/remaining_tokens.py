"""The images' tokens that are left between two layers, and what a method sees of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from eadp.core import Selection
from eadp.methods import NoPruning
from eadp.methods.base import Newlines
from eadp.methods.inside import Cut
from eadp.runtime.decoder import Decoder
from eadp.runtime.kept_columns import kept_slots
from eadp.runtime.prefill_inputs import PrefillInputs
from eadp.runtime.probe import AttentionInputs
from eadp.runtime.vision_capture import PlacedImage


@dataclass
class RemainingImage:
    """What is left of one image between two layers. Columns are those of the first layer.

    Attributes:
        placed: The image and its place in the prompt.
        row: The row of the batch, beams included.
        columns: The column of each slot of the image; meaningless for slots that are dropped.
        left: Which slots are left.
        kept: K, the tokens that are left, in the order of their rows.
        counts: The number of tokens from a layer on.
        moved: The columns of merged tokens that the last cut put after the others.
    """

    placed: PlacedImage
    row: int
    columns: Tensor
    left: Tensor
    kept: Tensor
    counts: dict[int, int] = field(default_factory=dict)
    moved: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    def __post_init__(self) -> None:
        self.counts[0] = len(self.kept)

    @property
    def token_columns(self) -> Tensor:
        """K, the column of each token that is left."""
        return self.columns[self.placed.layout.slots[self.kept]]

    def drop(self, rows: Tensor, merged: int, newlines: Newlines, layer: int) -> Tensor:
        """Keep some of the K tokens.

        Args:
            rows: The tokens that stay, of 0 … K−1.
            merged: How many of them, the last ones, are merged and follow the others.
            newlines: Which newlines stay.
            layer: The layer before which the others are dropped.

        Returns:
            The columns that are dropped.
        """
        self.kept = self.kept[rows]
        self.moved = self.token_columns[len(rows) - merged :]
        still_left = self.left & kept_slots(self.placed.layout, self.kept, newlines)
        dropped, self.left = self.columns[self.left & ~still_left], still_left
        self.counts[layer] = len(self.kept)
        return dropped

    def per_layer(self, depth: int) -> tuple[int, ...]:
        """The number of tokens that each layer processes."""
        counts: list[int] = []
        for layer in range(depth):
            counts.append(self.counts.get(layer, counts[-1] if counts else 0))
        return tuple(counts)

    def selection(
        self, before: Selection, method: str, depth: int, notes: tuple[str, ...], scores: Tensor | None
    ) -> Selection:
        """Add the cuts to the selection before the language model.

        Args:
            before: The selection of the tokens that entered the language model.
            method: The name of the method inside it.
            depth: The number of layers of the language model.
            notes: The notes of the method.
            scores: The scores of the tokens that entered.
        """
        per_layer, rows = self.per_layer(depth), self.kept.to(before.indices.device)
        kept = rows.sort().values
        chain = method if before.method == NoPruning.name else f"{before.method}+{method}"
        cuts = [f"{now} from layer {layer} of {depth} on" for layer, now in self.counts.items() if layer]
        summary = (
            f"{method}: all {self.counts[0]} tokens stay" if not cuts else f"{self.counts[0]} tokens, {', '.join(cuts)}"
        )
        if before.scores is None and scores is not None and len(scores) == before.total:
            before = replace(before, scores=scores)
        if not cuts:
            return replace(before, method=chain, per_layer=per_layer, notes=(*before.notes, summary))
        layout = self.placed.layout
        blocks = torch.tensor([rows * columns for rows, columns in layout.grids]).cumsum(0)
        quotas = torch.bincount(torch.bucketize(self.kept, blocks, right=True), minlength=len(blocks))
        return replace(
            before,
            indices=kept,
            method=chain,
            order=None,
            gains=None,
            coverage=None,
            bound=None,
            quotas=tuple(quotas.tolist()),
            merge=None if before.merge is None else before.merge[torch.isin(before.indices, kept)],
            rows=None if torch.equal(rows, kept) else rows,
            newlines=int(self.left[layout.newline_slots].sum()),
            per_layer=per_layer,
            notes=(*before.notes, summary, *notes),
        )


@dataclass(frozen=True)
class RemainingTokens:
    """What is left of the images of one prompt that share a budget. Columns are those of the first layer.

    Attributes:
        images: The images.
        cuts: The cuts by layer.
        input_columns: The columns of the N tokens that entered the language model.
        text_columns: The columns of the words after them.
        last_column: The column of the prompt's last token.
    """

    images: list[RemainingImage]
    cuts: dict[int, Cut]
    input_columns: Tensor
    text_columns: Tensor
    last_column: int

    @property
    def row(self) -> int:
        """The row of the batch."""
        return self.images[0].row

    @property
    def token_columns(self) -> Tensor:
        """M, the column of each token that is left."""
        return torch.cat([image.token_columns for image in self.images])

    def cut_at(self, layer: int) -> Cut | None:
        """The cut before a layer; None where it has nothing to drop or to merge."""
        cut = self.cuts.get(layer)
        left = sum(len(image.kept) for image in self.images)
        return cut if cut is not None and (cut.keep < left or cut.merged) else None

    def drop(self, rows: Tensor, cut: Cut, newlines: Newlines) -> Tensor:
        """Keep some of the M tokens.

        Args:
            rows: The tokens that stay, of 0 … M−1, merged ones last.
            cut: The cut.
            newlines: Which newlines stay.

        Returns:
            The columns that are dropped.
        """
        dropped, start, is_merged = [], 0, torch.arange(len(rows)) >= len(rows) - cut.merged
        for image in self.images:
            end = start + len(image.kept)
            here = (rows >= start) & (rows < end)
            dropped.append(image.drop(rows[here] - start, int(is_merged[here].sum()), newlines, cut.layer))
            start = end
        return torch.cat(dropped)

    def selections(
        self, before: list[Selection], method: str, depth: int, notes: tuple[str, ...], scores: Tensor | None
    ) -> list[Selection]:
        """One selection per image; see `RemainingImage.selection`. scores: of all N tokens, or None."""
        if scores is None:
            parts: list[Tensor | None] = [None] * len(self.images)
        else:
            parts = list(scores.split([image.counts[0] for image in self.images]))
        return [
            image.selection(entered, method, depth, notes, part)
            for image, entered, part in zip(self.images, before, parts, strict=False)
        ]


def last_attention_of_all(
    groups: Sequence[RemainingTokens], inputs: AttentionInputs, current: Tensor, past: int
) -> list[Tensor]:
    """The attention of the last token of each prompt to the tokens that are left, averaged over heads.

    Args:
        groups: The tokens that are left, by budget.
        inputs: The attention inputs of all rows.
        current: B×P₀, on the CPU, the present column of each column of the first layer.
        past: How many of the keys come before the first column.
    """
    last = torch.zeros(len(current), 1, dtype=torch.long)
    for group in groups:
        last[group.row] = current[group.row, group.last_column]
    attention = inputs.rows(last).mean(1).flatten()
    width = inputs.key.shape[2]
    columns = [group.row * width + past + current[group.row, group.token_columns] for group in groups]
    taken = attention[torch.cat(columns).to(attention.device)]
    return list(taken.split([len(each) for each in columns]))


class CutView:
    """The `LayerView` of one prompt's images at the input of a layer."""

    def __init__(
        self,
        remaining: RemainingTokens,
        states: Tensor,
        inputs: PrefillInputs,
        current_columns: Tensor,
        attention_inputs: AttentionInputs,
        past: int,
        decoder: Decoder,
        last_attention: Callable[[], Tensor] | None = None,
    ) -> None:
        """Set up the view.

        Args:
            remaining: The tokens that are left.
            states: P×d, the hidden states at the input of the layer.
            inputs: What entered the first layer.
            current_columns: P₀, the present column of each column of the first layer.
            attention_inputs: The attention inputs that the method looks at.
            past: How many of their keys come before the first column.
            decoder: The language model.
            last_attention: Gives the attention of the prompt's last token to the M tokens, where that is computed for
                all prompts at once.
        """
        self._remaining = remaining
        self._last_attention = last_attention
        self._states = states
        self._inputs = inputs
        self._current_columns = current_columns
        self._attention_inputs = attention_inputs
        self._past = past
        self.normed = decoder.apply_final_norm

    @cached_property
    def _visual_columns(self) -> Tensor:
        return self._current_columns[self._remaining.token_columns]

    @cached_property
    def _text_columns(self) -> Tensor:
        return self._current_columns[self._remaining.text_columns]

    @property
    def visual(self) -> Tensor:
        return self._states[self._visual_columns]

    @property
    def text(self) -> Tensor:
        return self._states[self._text_columns]

    @property
    def visual_keys(self) -> Tensor:
        return self._keys(self._visual_columns)

    @property
    def text_keys(self) -> Tensor:
        return self._keys(self._text_columns)

    @property
    def visual_inputs(self) -> Tensor:
        return self._inputs.embeddings[self._remaining.row, self._remaining.input_columns]

    @property
    def text_inputs(self) -> Tensor:
        return self._inputs.embeddings[self._remaining.row, self._remaining.text_columns]

    @property
    def visual_places(self) -> Tensor:
        return self._inputs.places[self._remaining.row, self._remaining.token_columns]

    @property
    def text_places(self) -> Tensor:
        return self._inputs.places[self._remaining.row, self._remaining.text_columns]

    def attention(self, words: Tensor | None = None) -> Tensor:
        remaining = self._remaining
        if words is None and self._last_attention is not None:
            return self._last_attention()[None]
        queries = torch.tensor([remaining.last_column]) if words is None else remaining.text_columns[words.cpu()]
        rows = self._attention_inputs.rows(self._current_columns[queries])
        return rows[0].mean(0)[:, self._past + self._visual_columns]

    def _keys(self, columns: Tensor) -> Tensor:
        return self._attention_inputs.key[0, :, self._past + columns].transpose(0, 1).flatten(1)
