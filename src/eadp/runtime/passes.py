"""One call of the language model on its way through the layers: a prefill that is cut, or a continuation of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from eadp.core import Selection, trace
from eadp.methods.base import Newlines, Positions
from eadp.methods.inside import InsideMethod
from eadp.runtime.compact import Compaction
from eadp.runtime.decoder import Decoder
from eadp.runtime.ledger import Ledger
from eadp.runtime.masks import Mask, causal, flat, gathered, kind_of, settled
from eadp.runtime.merge import Merge, merged
from eadp.runtime.positions import counting, lagging, renumbered
from eadp.runtime.probe import Heads, ahead
from eadp.runtime.prompted import Prompted
from eadp.runtime.remaining import CutView, Remaining, exact, rows_of


@dataclass(frozen=True)
class Step:
    """One cut, for all rows of the batch. plan: what it does to their columns; selections: one for each budget."""

    layer: int
    plan: Compaction
    merges: list[Merge]
    selections: list[Selection]


class Pass:
    """What both kinds of calls have: the language model, and the positions that it has counted for its first layer."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.config = decoder.config
        self._ids: Tensor | None = None

    @property
    def ids(self) -> Tensor:
        """The position ids by which the first layer turns its queries and keys, …×B×P₀, or …×1×P₀."""
        if self._ids is None:
            raise RuntimeError("the language model did not call its rotary embedding, so its positions are not known")
        return self._ids

    @ids.setter
    def ids(self, ids: Tensor) -> None:
        self._ids = ids


class Prefill(Pass):
    """The layers of a prefill, cut by cut.

    layout:  what the columns of the first layer have become. steps: the cuts so far.
    heads:   of the layer that the method looks at, while it chooses.
    ledgers: what the cache will have to remember, from which layer on.
    """

    def __init__(
        self,
        prompted: Prompted,
        rests: list[Remaining],
        beams: int,
        method: InsideMethod,
        positions: Positions,
        newlines: Newlines,
        decoder: Decoder,
        own_masks: bool,
    ) -> None:
        super().__init__(decoder)
        self.prompted = prompted
        self.rests = rests
        self.beams = beams
        self.method = method
        self.positions = positions
        self.newlines = newlines
        rows, length = prompted.embeddings.shape[:2]
        self.layout = Compaction.identity(rows, length, prompted.valid, prompted.embeddings.device)
        self.steps: list[Step] = []
        self.heads: Heads | None = None
        self.notes: dict[int, tuple[str, ...]] = {}
        self.scores: dict[int, Tensor | None] = {}
        self.ledgers: list[tuple[int, Ledger]] = []
        self._renumbered = torch.zeros(rows, dtype=torch.bool)
        self._layouts: list[tuple[int, Compaction]] = [(0, self.layout)]
        self._stage = id(self.layout), id(prompted.past)
        self._made: dict[Any, Any] = {}
        mask = flat(prompted.mask) if own_masks else None
        self._square = mask if mask is not None and mask.ndim == 4 else None

    def cuts_at(self, layer: int) -> bool:
        return any(rest.cut_at(layer) for rest in self.rests)

    def enter(
        self, index: int, layer: nn.Module, states: Tensor, settings: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """What the layer gets. states: B×P×d; settings: the other arguments, for all P₀ columns."""
        if self.cuts_at(index):
            with torch.no_grad():
                if self.method.attention_from == "next":
                    with trace.part("relevance"):
                        self.heads = ahead(layer, states, self._settings(index, states, settings))
                step = self._choose(index, states)
            with trace.part("compaction"):
                states = step.plan.rows(merged(states, step.merges))
            self.steps.append(step)
            self.layout = self.layout.then(step.plan)
            self._layouts.append((index, self.layout))
        settings = self._settings(index, states, settings)
        stage = id(self.layout), id(self.prompted.past.at(index))
        if stage != self._stage:
            self.ledgers.append((index, self._ledger(index, settings.get("past_key_values"))))
            self._stage = stage
        return states, settings

    @trace.part("compaction")
    def _choose(self, index: int, states: Tensor) -> Step:
        heads, self.heads = self.heads, None
        if heads is None:
            raise RuntimeError(f"layer {index - 1} was not called through its module, so its attention was not seen")
        length = states.shape[1]
        keep = torch.ones(states.shape[:2], dtype=torch.bool)
        # Between two columns there is room for as many as there are.
        places = (torch.arange(length) * (length + 1)).repeat(len(states), 1)
        merges, selections, moved = [], [], False
        past = heads.key.shape[2] - length if self.prompted.start else 0
        for number, rest in enumerate(self.rests):
            cut = rest.cut_at(index)
            if cut is None:
                continue
            row, where = rest.row, self.layout.fill[rest.row].cpu()
            view = CutView(rest, states[row], self.prompted, where, heads.of(row), past, self.decoder)
            tokens = where[rest.tokens]
            with trace.part("selection"):
                selection = exact(self.method.choose(cut, view), cut, len(tokens))
            same = slice(row, row + self.beams)
            rows = rows_of(selection).cpu()
            if selection.merge is not None:
                merges += [Merge(beam, tokens, tokens[rows], selection.merge) for beam in range(same.start, same.stop)]
            keep[same, where[rest.shrink(rows, cut, self.newlines)]] = False
            for each in rest.pictures:
                if len(each.moved):
                    moved, end = True, int(where[each.columns[each.there]].max())
                    places[same, where[each.moved]] = places[row, end] + 1 + torch.arange(len(each.moved))
            self._renumbered[same] |= self.positions == "renumber"
            self.notes[number] = (*self.notes.get(number, ()), *selection.notes)
            self.scores.setdefault(number, selection.scores)
            selections.append(selection)
        device, valid = self.layout.index.device, self.layout.valid
        keep = keep.to(device) if valid is None else keep.to(device) & valid
        return Step(index, Compaction.of(keep, places.to(device) if moved else None), merges, selections)

    def _settings(self, index: int, states: Tensor, settings: dict[str, Any]) -> dict[str, Any]:
        past = self.prompted.past.at(index)
        if not self.steps and past is self.prompted.past:
            return settings
        cache, embeddings = settings.get("past_key_values"), settings["position_embeddings"]
        changed = {**settings, "attention_mask": self._mask(index, states, cache)}
        if self.steps:
            changed["position_ids"] = counting(self.layout, self._held(index, cache), states.device)
        if bool(self._renumbered.any()) or past.shift is not None:
            changed["position_embeddings"] = self._once(
                ("turn", kind_of(self.config, index), id(past)),
                lambda: self.decoder.turned(states, self.positions_at(index)[0], index),
            )
        elif self.steps:
            changed["position_embeddings"] = self._once(
                ("turn", id(embeddings)),
                lambda: tuple(self.layout.rows(each.expand(len(states), -1, -1)) for each in embeddings),
            )
        return changed

    def positions_at(self, index: int) -> tuple[Tensor, Tensor | None]:
        """The positions of the columns that are left, …×B×P, and how far they lag behind the first layer's, B; None
        where they do not. Rows that were not cut have theirs as they came."""
        shift = self.prompted.past.at(index).shift
        ids = self.ids.expand(*self.ids.shape[:-2], len(self._renumbered), -1)
        kept = lagging(self.layout.columns(ids), shift)
        if not bool(self._renumbered.any()):
            return kept, shift
        rows = self._renumbered.to(ids.device)
        packed, lag = renumbered(ids, self.layout, shift, self.prompted.valid, self.prompted.origin)
        before = torch.zeros_like(lag) if shift is None else shift.to(lag.device)
        return torch.where(rows[:, None], packed, kept), torch.where(rows, lag, before)

    def _mask(self, index: int, states: Tensor, cache: Cache | None) -> Any:
        def make() -> Any:
            if self._square is not None:
                return gathered(self._square, self.layout, self.config, cache, index)
            return causal(states, self._ledger(index, cache).valid, self.config, cache, index)

        return self._once(("mask", kind_of(self.config, index), id(self.prompted.past.at(index))), make)

    def _once(self, key: Any, make: Any) -> Any:
        """Layers of one stage share what is made for them."""
        key = (len(self.steps), *key)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _held(self, index: int, cache: Cache | None) -> int:
        """How many tokens the cache of a layer holds before this call."""
        return int(cache.get_query_offset(index)) if self.prompted.start and cache is not None else 0

    def _ledger(self, index: int, cache: Cache | None) -> Ledger:
        """What the cache will have to remember of the layers from this one on."""
        past, held = self.prompted.past.at(index), self._held(index, cache)
        rows, device = len(self.layout.index), self.layout.index.device
        return Ledger(
            offset=past.offset + self.prompted.length - self.layout.length,
            settled=held + self.layout.length,
            firm=held + self.layout.length - min(self.layout.tail, self.prompted.tail),
            valid=self.layout.after(settled(self.prompted.logical, past, held, rows, device), held),
            shift=self.positions_at(index)[1],
        )

    # After the last layer.

    def restore(self, output: Any) -> None:
        """Everything back to the P₀ columns of the first layer."""
        if not self.steps:
            return
        output.last_hidden_state = self.layout.restore(output.last_hidden_state)
        if output.hidden_states is not None:
            # The first are the embeddings, then each is what a layer gives.
            *inner, last = output.hidden_states
            restored = [self._layout_of(max(0, number - 1)).restore(states) for number, states in enumerate(inner)]
            output.hidden_states = (*restored, self.layout.restore(last))

    def _layout_of(self, layer: int) -> Compaction:
        return next(layout for first, layout in reversed(self._layouts) if first <= layer)

    def columns(self, came: Tensor | None) -> Tensor | None:
        """B×L, which columns of the prompts stayed to the end, before beams. came: which came in."""
        if came is None:
            return None
        stayed = came.clone()
        for rest in (rest for group in self.rests for rest in group.pictures):
            stayed[rest.placed.row, rest.placed.columns[~rest.there]] = False
        return stayed

    def selections(self, before: list[Selection]) -> list[Selection]:
        """What stayed in the end, picture by picture. before: what came in."""
        depth = self.config.num_hidden_layers
        parts: list[Selection] = []
        for number, rest in enumerate(self.rests):
            notes, scores = self.notes.get(number, ()), self.scores.get(number)
            parts += rest.selections(before[len(parts) :], self.method.name, depth, notes, scores)
        return parts


class Continuation(Pass):
    """A call that adds tokens to a cache whose layers hold unequally many."""

    def __init__(self, decoder: Decoder, mask: Mask, ledger: Ledger) -> None:
        super().__init__(decoder)
        self.mask = mask
        self.ledger = ledger
        self._made: dict[Any, Any] = {}

    def enter(
        self, index: int, layer: nn.Module, states: Tensor, settings: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        ledger = self.ledger.at(index)
        if ledger is self.ledger:
            return states, settings
        key = kind_of(self.config, index), id(ledger)
        if key not in self._made:
            cache = settings["past_key_values"]
            valid = self._valid(index, ledger, states, cache)
            self._made[key] = {"attention_mask": causal(states, valid, self.config, cache, index)}
            if ledger.shift is not None:
                ids = lagging(self.ids, ledger.shift)
                self._made[key]["position_embeddings"] = self.decoder.turned(states, ids, index)
        return states, {**settings, **self._made[key]}

    def _valid(self, index: int, ledger: Ledger, states: Tensor, cache: Any) -> Tensor | None:
        rows, length = states.shape[:2]
        held = cache.get_query_offset(index)
        # A static layer counts in a tensor, which must not be waited for; the causal mask hides its empty slots.
        width = cache.layers[index].get_max_length() if isinstance(held, Tensor) else held + length
        flat_mask = self.mask if isinstance(self.mask, Tensor) and self.mask.ndim == 2 else None
        return ledger.physical(flat_mask, rows, width, states.device)
