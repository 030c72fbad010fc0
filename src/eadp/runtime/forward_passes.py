"""A prefill of the language model, layer by layer, that is cut between the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from eadp.compat import query_offset
from eadp.core import Selection, trace
from eadp.core.deferred import Deferred
from eadp.methods.base import Newlines, Positions
from eadp.methods.inside import Cut, InsideMethod
from eadp.runtime.cache_map import CacheMap
from eadp.runtime.compact import Compaction, left_padding
from eadp.runtime.cut_log import CutLog, check_cut_selection, read_together
from eadp.runtime.decoder import Decoder
from eadp.runtime.kept_columns import KeptColumns
from eadp.runtime.masks import (
    FULL,
    attention_type,
    causal_layer_mask,
    cut_layer_mask,
    full_attention_mask,
    valid_past_columns,
)
from eadp.runtime.merge import Merge, apply_merges
from eadp.runtime.positions import count_columns, move_back, renumber_positions
from eadp.runtime.prefill_inputs import PrefillInputs
from eadp.runtime.probe import AttentionInputs, Report, peek_attention, stop_at_attention
from eadp.runtime.remaining_tokens import CutView, RemainingTokens, last_attention_of_all


@dataclass(frozen=True)
class AppliedCut:
    """One cut, for all rows of the batch.

    Attributes:
        layer: The layer before which it is.
        plan: What it does to the columns.
        merges: The merged rows.
        selections: One per budget.
    """

    layer: int
    plan: Compaction
    merges: list[Merge]
    selections: list[Selection]


class PrefillPass:
    """The layers of a prefill, cut by cut.

    Attributes:
        layout: What the columns of the first layer have become.
        cuts: The cuts so far.
        attention_inputs: Those of the layer that the method looks at, while it selects.
        cache_maps: Pairs of a layer and what the cache has to remember from it on.
    """

    def __init__(
        self,
        inputs: PrefillInputs,
        remaining: list[RemainingTokens],
        beams: int,
        method: InsideMethod,
        positions: Positions,
        newlines: Newlines,
        decoder: Decoder,
        has_prepared_masks: bool,
    ) -> None:
        """Begin a prefill.

        Args:
            inputs: What enters the first layer.
            remaining: The images' tokens, by budget.
            beams: How many rows of the batch are beams of one prompt.
            method: The method that cuts.
            positions: What kept tokens do with their positions.
            newlines: Which newlines stay.
            decoder: The language model.
            has_prepared_masks: Whether the base model builds 4-D masks itself.
        """
        self.decoder = decoder
        self.config = decoder.config
        self.inputs = inputs
        self.remaining = remaining
        self.beams = beams
        self.method = method
        self.positions = positions
        self.newlines = newlines
        rows, length = inputs.embeddings.shape[:2]
        device = inputs.embeddings.device
        valid = None if inputs.valid is None else inputs.valid.to(device)
        self.layout = Compaction.identity(rows, length, valid, device)
        self.cuts: list[AppliedCut] = []
        self.attention_inputs: AttentionInputs | None = None
        self.log = CutLog(remaining, method.name, newlines, self.config.num_hidden_layers)
        self.counts: Sequence[int] = [length] * rows if inputs.valid is None else inputs.valid.sum(1).tolist()
        self.cache_maps: list[tuple[int, CacheMap]] = []
        self._on_host = Compaction.identity(rows, length, inputs.valid, torch.device("cpu"))
        self._is_renumbered = torch.zeros(rows, dtype=torch.bool)
        self._layouts: list[tuple[int, Compaction]] = [(0, self.layout)]
        self._stage = id(self.layout), id(inputs.past)
        self._memo: dict[Any, Any] = {}
        self._is_peeking = False
        mask = full_attention_mask(inputs.mask) if has_prepared_masks else None
        self._prepared_mask = mask if mask is not None and mask.ndim == 4 else None

    def cuts_at(self, layer: int) -> bool:
        """Whether tokens are dropped or merged before this layer."""
        if not self.log.is_settled and any(layer in group.cuts for group in self.remaining):
            self._settle()
        return any(group.cut_at(layer) for group in self.remaining)

    def _settle(self) -> None:
        """Read what former cuts did, which only the device knows."""
        self.log.settle()
        self._on_host = self.layout.to(torch.device("cpu"))

    def report_at(self, layer: int) -> Report | None:
        """What the attention inputs of a layer are reported to; None where the method does not look at them."""
        if self._is_peeking:
            return stop_at_attention
        return self._read_attention if self.method.attention_from == "previous" and self.cuts_at(layer + 1) else None

    def _read_attention(self, inputs: AttentionInputs) -> None:
        self.attention_inputs = inputs

    @trace.part("relevance")
    def _peek(self, layer: nn.Module, states: Tensor, settings: dict[str, Any]) -> AttentionInputs:
        self._is_peeking = True
        try:
            return peek_attention(layer, states, settings)
        finally:
            self._is_peeking = False

    def enter_layer(
        self, index: int, layer: nn.Module, states: Tensor, settings: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Prepare the arguments of a layer, and cut before it where a cut is due.

        Args:
            index: The layer, counted from 0.
            layer: Its module.
            states: B×P×d, its input.
            settings: Its other arguments, for all P₀ columns.

        Returns:
            The states and arguments that the layer gets.
        """
        if self.cuts_at(index):
            with torch.no_grad():
                if self.method.attention_from == "next":
                    self.attention_inputs = self._peek(layer, states, self._settings(index, states, settings))
                cut = self._select(index, states, self._filled_keys(index, states, settings.get("past_key_values")))
            with trace.part("compaction"):
                states = cut.plan.take_rows(apply_merges(states, cut.merges))
            self.cuts.append(cut)
            self.layout = self._on_host if states.device.type == "cpu" else self.layout.then(cut.plan)
            self._layouts.append((index, self.layout))
        settings = self._settings(index, states, settings)
        stage = id(self.layout), id(self.inputs.past.at_layer(index))
        if stage != self._stage:
            self.cache_maps.append((index, self._cache_map(index, settings.get("past_key_values"))))
            self._stage = stage
        return states, settings

    @trace.part("compaction")
    def _select(self, index: int, states: Tensor, filled_keys: int) -> AppliedCut:
        attention_inputs, self.attention_inputs = self.attention_inputs, None
        if attention_inputs is None:
            raise RuntimeError(
                f"layer {index - 1} was not called through its module, so its attention was not recorded"
            )
        attention_inputs = attention_inputs.first_keys(filled_keys)
        past = attention_inputs.key.shape[2] - states.shape[1]
        cuts = {number: cut for number, group in enumerate(self.remaining) if (cut := group.cut_at(index)) is not None}
        groups = [self.remaining[number] for number in cuts]
        # The present column of each column of the first layer.
        current = self._on_host.fill
        tokens = [current[group.row][group.token_columns] for group in groups]
        # On the CPU, one prompt after another takes less memory.
        shared = None
        if states.device.type != "cpu":
            shared = Deferred(lambda: last_attention_of_all(groups, attention_inputs, current, past))
        views = [
            CutView(
                group,
                states[group.row],
                self.inputs,
                current[group.row],
                attention_inputs.for_row(group.row),
                past,
                self.decoder,
                None if shared is None else partial(_take, shared, place),
            )
            for place, group in enumerate(groups)
        ]
        with trace.part("selection"):
            if states.device.type == "cpu":
                chosen = [self.method.choose(cut, view) for cut, view in zip(cuts.values(), views, strict=True)]
            else:
                chosen = self.method.choose_batch(list(cuts.values()), views)
        selections = [
            check_cut_selection(selection, cut, len(columns))
            for selection, cut, columns in zip(chosen, cuts.values(), tokens, strict=True)
        ]
        for group in groups:
            self._is_renumbered[group.row : group.row + self.beams] |= self.positions == "renumber"
        stays_unread = all(
            selection.indices.device.type != "cpu" and selection.merge is None and not cut.merged
            for selection, cut in zip(selections, cuts.values(), strict=True)
        ) and not any(len(image.placed.layout.newline_slots) for group in groups for image in group.images)
        if stays_unread:
            plan, merges = self._cut_unread(cuts, selections, tokens), list[Merge]()
        else:
            plan, merges = self._cut_known(cuts, selections, tokens)
        return AppliedCut(index, plan, merges, selections)

    def _cut_unread(
        self, cuts: dict[int, Cut], selections: Sequence[Selection], tokens: Sequence[Tensor]
    ) -> Compaction:
        """Cut by selections that only the device knows; how many tokens they keep is known."""
        rows, length = len(self.layout.index), self.layout.length
        known = self._valid_columns(rows, length)
        columns, kept = [], []
        for (number, cut), selection, here in zip(cuts.items(), selections, tokens, strict=True):
            row = self.remaining[number].row
            for beam in range(row, row + self.beams):
                known[beam, here] = False
                columns.append(beam * length + here)
                kept.append(selection.indices)
            self.log.add_unread(number, cut, selection)
        stay = KeptColumns.of_chosen(known, columns, kept, sum(self.counts))
        self.counts = stay.counts
        return stay.compaction(self.layout.index.device)

    def _cut_known(
        self, cuts: dict[int, Cut], selections: Sequence[Selection], tokens: Sequence[Tensor]
    ) -> tuple[Compaction, list[Merge]]:
        """Cut by selections that the host knows, or reads now."""
        length = self.layout.length
        keep = self._valid_columns(len(self.layout.index), length)
        # Between the numbers of two columns there is room for as many others as there are columns.
        order = (torch.arange(length) * (length + 1)).repeat(len(keep), 1)
        merges, is_reordered = list[Merge](), False
        for (number, cut), selection, here, rows in zip(
            cuts.items(), selections, tokens, read_together(selections), strict=True
        ):
            group = self.remaining[number]
            row, current = group.row, self._on_host.fill[group.row]
            beams = slice(row, row + self.beams)
            if selection.merge is not None:
                merges += [Merge(beam, here, rows, selection.merge) for beam in range(beams.start, beams.stop)]
            keep[beams, current[self.log.add(number, cut, selection, rows)]] = False
            for image in group.images:
                if len(image.moved):
                    is_reordered, end = True, int(current[image.columns[image.left]].max())
                    order[beams, current[image.moved]] = order[row, end] + 1 + torch.arange(len(image.moved))
        total, self.counts = sum(self.counts), keep.sum(1).tolist()
        plan = Compaction.from_mask(keep, order if is_reordered else None)
        plan = replace(plan, removed=total - sum(self.counts))
        self._on_host = self._on_host.then(plan)
        return plan.to(self.layout.index.device), merges

    def _valid_columns(self, rows: int, length: int) -> Tensor:
        """B×P, on the CPU, false for padding. A prompt may be padded on the right until the first cut."""
        valid = left_padding(self.counts) if self.cuts else self.inputs.valid
        return torch.ones(rows, length, dtype=torch.bool) if valid is None else valid.clone()

    def _filled_keys(self, index: int, states: Tensor, cache: Cache | None) -> int:
        """How many keys that the method looks at are tokens: a static cache returns its empty slots too."""
        length = states.shape[1]
        if cache is None or not self.inputs.start:
            return length
        is_next = self.method.attention_from == "next"
        return self._held(index, cache) + length if is_next else int(query_offset(cache, index - 1))

    def _settings(self, index: int, states: Tensor, settings: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a layer besides its states, for the columns that are left."""
        past = self.inputs.past.at_layer(index)
        if not self.cuts and past is self.inputs.past:
            return settings
        cache, embeddings = settings.get("past_key_values"), settings["position_embeddings"]
        changed = {**settings, "attention_mask": self._mask(index, states, cache, settings.get("attention_mask"))}
        if self.cuts:
            changed["position_ids"] = count_columns(self.layout, self._held(index, cache), states.device)
        if bool(self._is_renumbered.any()) or past.shift is not None:
            changed["position_embeddings"] = self._once(
                ("rotary", attention_type(self.config, index), id(past)),
                lambda: self.decoder.rotary_embeddings(states, self.positions_at(index)[0], index),
            )
        elif self.cuts:
            changed["position_embeddings"] = self._once(
                ("rotary", id(embeddings)),
                lambda: tuple(self.layout.take_rows(each.expand(len(states), -1, -1)) for each in embeddings),
            )
        return changed

    def positions_at(self, index: int) -> tuple[Tensor, Tensor | None]:
        """The positions of the columns that are left at a layer.

        Returns:
            …×B×P, the positions, and B, how far they are behind those of the first layer; None where they are not. Rows
            that were not cut keep their positions.
        """
        shift = self.inputs.past.at_layer(index).shift
        ids = self.inputs.position_ids
        ids = ids.expand(*ids.shape[:-2], len(self._is_renumbered), -1)
        kept = move_back(self.layout.take_columns(ids), shift)
        if not bool(self._is_renumbered.any()):
            return kept, shift
        rows = self._is_renumbered.to(ids.device)
        packed, lag = renumber_positions(
            ids, self.layout, self.counts, shift, self.inputs.valid, self.inputs.first_position
        )
        before = torch.zeros_like(lag) if shift is None else shift.to(lag.device)
        return torch.where(rows[:, None], packed, kept), torch.where(rows, lag, before)

    def _shift_at(self, index: int) -> Tensor | None:
        """B, how far positions at a layer are behind those of the first layer; None where they are not."""
        if not bool(self._is_renumbered.any()):
            return self.inputs.past.at_layer(index).shift
        return self.positions_at(index)[1]

    def _mask(self, index: int, states: Tensor, cache: Cache | None, given: Any) -> Any:
        # transformers waits for the device where it builds a mask from padding, so its own is cut there.
        is_cut = states.device.type != "cpu" and not self.inputs.start and attention_type(self.config, index) == FULL
        prepared = given if is_cut and isinstance(given, Tensor) and given.ndim == 4 else self._prepared_mask

        def make() -> Any:
            if prepared is not None:
                return cut_layer_mask(prepared, self.layout, self.config, cache, index)
            return causal_layer_mask(states, self._cache_map(index, cache).valid, self.config, cache, index)

        key = "mask", attention_type(self.config, index), id(self.inputs.past.at_layer(index))
        return self._once(key, make)

    def _once(self, key: Any, make: Any) -> Any:
        """Make a value once for all layers between two cuts."""
        key = (len(self.cuts), *key)
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def _held(self, index: int, cache: Cache | None) -> int:
        """How many tokens the cache of a layer holds before this call."""
        return int(query_offset(cache, index)) if self.inputs.start and cache is not None else 0

    def _cache_map(self, index: int, cache: Cache | None) -> CacheMap:
        """What the cache has to remember of the layers from this one on."""
        past, held = self.inputs.past.at_layer(index), self._held(index, cache)
        rows, device = len(self.layout.index), self.layout.index.device
        valid_past = valid_past_columns(self.inputs.logical_mask, past, held, rows, device)
        return CacheMap(
            offset=past.offset + self.inputs.length - self.layout.length,
            prefilled=held + self.layout.length,
            uncroppable=held + self.layout.length - min(self.layout.tail, self.inputs.tail),
            valid=self.layout.valid_with_past(valid_past, held),
            padded=past.padded or self.inputs.valid is not None,
            shift=self._shift_at(index),
        )

    # After the last layer.

    def restore(self, output: Any) -> None:
        """Restore the P₀ columns of the first layer in the output of the language model."""
        if not self.cuts:
            return
        output.last_hidden_state = self.layout.restore(output.last_hidden_state)
        if output.hidden_states is not None:
            # The first are the embeddings; each of the others is the output of a layer.
            *inner, last = output.hidden_states
            restored = [self._layout_at(max(0, number - 1)).restore(states) for number, states in enumerate(inner)]
            output.hidden_states = (*restored, self.layout.restore(last))

    def _layout_at(self, layer: int) -> Compaction:
        return next(layout for first, layout in reversed(self._layouts) if first <= layer)


def _take(parts: Deferred[list[Tensor]], place: int) -> Tensor:
    return parts()[place]
