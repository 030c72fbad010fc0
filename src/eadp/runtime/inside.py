"""Pruning inside the language model: its layers pass on fewer tokens than they got.

A prefill is cut at the input of some layers: hidden states, position embeddings, masks, and so what the caches of the
layers from there on get. Later calls on that cache find layers of unequal length, and get a mask for each, and its own
positions where tokens are renumbered. Layer 0 always sees everything that comes in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from eadp.methods.base import Newlines, Positions
from eadp.methods.inside import InsideMethod, scale_layers
from eadp.models.family import Family
from eadp.runtime.choose import Choice, Chooser
from eadp.runtime.compact import Compaction
from eadp.runtime.decoder import Decoder
from eadp.runtime.hooks import Hooks
from eadp.runtime.ledger import Ledger
from eadp.runtime.masks import Mask
from eadp.runtime.merge import deepstack
from eadp.runtime.passes import Continuation, Prefill
from eadp.runtime.probe import AttentionProbe, Heads
from eadp.runtime.prompted import Prompted
from eadp.runtime.remaining import Remaining, Rest
from eadp.runtime.sight import View

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class InsideLanguageModel:
    """Cuts the visual tokens between the layers of a language model as long as its hooks are in place."""

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        method: InsideMethod,
        chooser: Chooser,
        positions: Positions | None = None,
        newlines: Newlines | None = None,
    ) -> None:
        """positions: of the tokens left after a cut; newlines: which stay. None: as in the method's release."""
        self.model = model
        self.family = family
        self.method = method
        self.chooser = chooser
        self.positions = positions or method.positions_for(family.config.model_type)
        self.newlines: Newlines = newlines or method.newlines
        self.text = cast(Any, family.text_model)
        self.decoder = Decoder(self.text)
        self.layers: list[nn.Module] = list(self.text.layers)[: self.text.config.num_hidden_layers]
        self._call: Prefill | Continuation | None = None
        self._drafts = 0

    @property
    def depth(self) -> int:
        return len(self.layers)

    def install(self, hooks: Hooks) -> None:
        hooks.before(self.model, self._count_drafts)
        hooks.before(self.text.rotary_emb, self._turning)
        for index, layer in enumerate(self.layers):
            hooks.before(layer, partial(self._enter, index))
        if self.method.attention_from == "previous":
            for index in {*scale_layers(self.method.layers, self.depth)}:
                attention = self.layers[index - 1].get_submodule("self_attn")
                AttentionProbe(attention, self._see, partial(self._cuts_at, index)).install(hooks)
        if hasattr(self.text, "_deepstack_process"):
            hooks.override(self.text, "_deepstack_process", self._deepstack(self.text._deepstack_process))

    # Called around the language model as a whole.

    def begin(self, prompted: Prompted, view: View, choice: Choice, plan: Compaction | None) -> None:
        """A prefill starts. choice: what a method before the language model kept; plan: what that did to columns."""
        if self.text.training and getattr(self.text, "gradient_checkpointing", False):
            raise ValueError(
                f"{self.method.name} cannot cut layers that run a second time for their gradients; "
                "turn gradient checkpointing off, or prune before the language model"
            )
        rests = self._remaining(prompted, view, choice, plan)
        self._call = Prefill(
            prompted,
            rests,
            view.beams,
            self.method,
            self.positions,
            self.newlines,
            self.decoder,
            self.family.makes_masks,
        )

    def resume(self, mask: Mask, ledger: Ledger) -> None:
        """A call without pictures goes on from a cache. mask: over the whole sequence, as if nothing had gone."""
        self._call = Continuation(self.decoder, mask, ledger) if ledger.deeper else None

    def end(self) -> Prefill | None:
        """The call is over; the prefill, if it was one."""
        call, self._call, self._drafts = self._call, None, 0
        return call if isinstance(call, Prefill) else None

    def _remaining(self, prompted: Prompted, view: View, choice: Choice, plan: Compaction | None) -> list[Remaining]:
        fill = None if plan is None else plan.fill.cpu()
        prompt = torch.ones(prompted.embeddings.shape[:2], dtype=torch.bool)
        if prompted.valid is not None:
            prompt &= prompted.valid.cpu()
        if self._drafts:
            prompt[:, -self._drafts :] = False
        words, groups, selections = prompt.clone(), [], iter(choice.selections)
        for group in self.chooser.groups(view.placed):
            groups.append(list[Rest]())
            for each in group:
                row = each.row * view.beams
                columns = each.columns if fill is None else fill[row, each.columns]
                there = choice.keep[row, each.columns]
                words[row, columns[there]] = False
                groups[-1].append(Rest(each, row, columns, there, next(selections).indices.cpu()))
        return [self._group(rests, prompt[rests[0].row], words[rests[0].row]) for rests in groups]

    def _group(self, rests: list[Rest], prompt: Tensor, words: Tensor) -> Remaining:
        """prompt: P₀, true for what is no padding; words: for what is no picture either."""
        tokens = torch.cat([rest.tokens for rest in rests])
        text = words.nonzero().flatten()
        behind = text[text > int(tokens.max())]
        cuts = {cut.layer: cut for cut in self.method.cuts(len(tokens), self.depth)}
        return Remaining(rests, cuts, tokens, behind if len(behind) else text, int(prompt.nonzero().max()))

    def _count_drafts(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Assisted decoding lets the first guesses of its helper follow the prompt in the prefill itself. They are no
        part of the prompt, and show in how many logits are asked for: its last token's and those of each guess."""
        asked, cache = kwargs.get("logits_to_keep"), kwargs.get("past_key_values")
        self._drafts = asked - 1 if isinstance(asked, int) and asked > 1 and cache is not None else 0

    def _turning(self, rotary: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The language model turns its first layer by these positions; deeper ones may have others."""
        if self._call is not None:
            self._call.ids = kwargs["position_ids"] if "position_ids" in kwargs else args[1]

    # The layers.

    def _enter(self, index: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if self._call is None:
            return None
        states, *others = args
        states, kwargs = self._call.enter(index, layer, states, kwargs)
        return (states, *others), kwargs

    def _cuts_at(self, index: int) -> bool:
        return isinstance(self._call, Prefill) and self._call.cuts_at(index)

    def _see(self, heads: Heads) -> None:
        if isinstance(self._call, Prefill):
            self._call.heads = heads

    def _deepstack(self, stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """What a model adds to its visual tokens after its first layers is cut and merged as they are."""

        def added(states: Tensor, there: Tensor, rows: Tensor) -> Tensor:
            for step in self._call.steps if isinstance(self._call, Prefill) else ():
                there, (rows,) = deepstack(there, [rows], step.merges, step.plan)
            return stock(states, there, rows)

        return added
