"""Pruning before the language model: its call is shortened, its output lengthened again.

In one forward: the base model is entered (`Sight`), the language model's call is shortened (`_shorten`), its rotary
embedding gets the positions (`_turn`), its output is lengthened (`_lengthen`). A call without images only has its mask
translated, and most not even that.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from eadp.compat import query_offset
from eadp.core import Selection, trace
from eadp.methods.base import Positions
from eadp.models.family import Picture
from eadp.runtime.choose import Choice, Chooser
from eadp.runtime.compact import Compaction
from eadp.runtime.hooks import Hooks
from eadp.runtime.inside import InsideLanguageModel
from eadp.runtime.ledger import Ledger, keep_ledger, ledger_of
from eadp.runtime.masks import Mask, continued, prefilled, segment, settled
from eadp.runtime.merge import deepstack, merged
from eadp.runtime.positions import counting, lagging, logical, renumbered
from eadp.runtime.prompted import Prompted
from eadp.runtime.sight import Sight, View

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """One shortened call of the language model. ledger: what its cache has to remember; turned: positions for RoPE."""

    compaction: Compaction
    ledger: Ledger
    turned: Tensor | None


class BeforeLanguageModel:
    """Prunes the visual tokens of a model as long as its hooks are in place.

    selections, pictures: of the last prefill; columns: B×L, which columns of its prompts stayed.
    """

    def __init__(
        self, sight: Sight, chooser: Chooser, positions: Positions, inside: InsideLanguageModel | None = None
    ) -> None:
        self.sight = sight
        self.family = sight.family
        self.chooser = chooser
        self.positions = positions
        self.inside = inside
        self.selections: list[Selection] = []
        self.pictures: list[Picture] = []
        self.columns: Tensor | None = None
        self._plan: Plan | None = None
        self._owner = weakref.ref(self.family.base)
        self._untranslated: Mask = None

    def install(self, hooks: Hooks) -> None:
        text = self.family.text_model
        if "rotary_emb" not in dict(text.named_children()):
            raise ValueError(
                f"{type(text).__name__} has no rotary embedding, so its tokens cannot keep their positions"
            )
        self.sight.install(hooks)
        if self.family.makes_masks:
            hooks.before(self.family.base, self._translate)
        hooks.before(text, self._shorten)
        hooks.after(text, self._lengthen)
        hooks.before(text.get_submodule("rotary_emb"), self._turn)
        if self.inside is not None:
            self.inside.install(hooks)

    def _translate(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Where the base model builds masks, it has to build them from the physical one."""
        ledger = ledger_of(kwargs.get("past_key_values"))
        if ledger is None or self.sight.has_images:
            return None
        self._untranslated = kwargs.get("attention_mask")
        ids = kwargs.get("input_ids")
        return args, _masked(kwargs, ledger, ids if ids is not None else kwargs["inputs_embeds"])

    @trace.part("compaction")
    def _shorten(self, text: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        cache: Any = kwargs.get("past_key_values")
        ledger = ledger_of(cache)
        if self.sight.has_images:
            start = int(query_offset(cache)) if cache is not None else 0
            if start and not self.family.continues_with_images:
                raise ValueError(
                    "this model cannot place a new image on a cache that already holds a conversation; "
                    "start from an empty cache and the whole conversation"
                )
            past = ledger or Ledger()
            view, choice = self._choose(kwargs)
            shortened = kwargs if choice.changes_nothing else self._shortened(kwargs, choice, past, start)
            if self.inside is not None:
                plan = None if self._plan is None else self._plan.compaction
                self.inside.begin(Prompted.of(kwargs, shortened, plan, past, start), view, choice, plan)
            if not choice.changes_nothing:
                return args, shortened
        if ledger is None:
            return None
        if not self.sight.has_images:
            self._resume(self._untranslated if self.family.makes_masks else kwargs.get("attention_mask"), ledger)
        embeddings = kwargs["inputs_embeds"]
        kwargs = dict(kwargs) if self.family.makes_masks else _masked(kwargs, ledger, embeddings)
        if ledger.shift is not None:
            rows, length = embeddings.shape[:2]
            ids = logical(kwargs.get("position_ids"), cache.get_seq_length(), rows, length, embeddings.device)
            kwargs["position_ids"] = lagging(ids, ledger.shift)
        return args, kwargs

    def _resume(self, mask: Mask, ledger: Ledger) -> None:
        if self.inside is not None:
            self.inside.resume(mask, ledger)
        elif ledger.deeper:
            raise ValueError(
                "this cache was cut between the layers of the language model; "
                "attach a method that prunes inside it to go on"
            )

    def _choose(self, kwargs: dict[str, Any]) -> tuple[View, Choice]:
        embeddings = kwargs["inputs_embeds"]
        with torch.no_grad():
            view = self.sight.view(embeddings.shape[1], kwargs.get("attention_mask"))
            choice = self.chooser.choose(view, embeddings[:: view.beams].detach())
        self.pictures = [each.picture for each in view.placed]
        self.selections, self.columns = choice.selections, choice.keep
        return view, choice.repeated(view.beams)

    def _shortened(self, kwargs: dict[str, Any], choice: Choice, past: Ledger, start: int) -> dict[str, Any]:
        """The call with the kept columns only. start: physical columns before it."""
        embeddings, mask = kwargs["inputs_embeds"], kwargs.get("attention_mask")
        rows, length = embeddings.shape[:2]
        device = embeddings.device
        keep, valid = choice.keep.to(device), segment(mask, length)
        plan = Compaction.of(keep if valid is None else keep & valid.to(device))

        ids = logical(kwargs.get("position_ids"), start + past.offset, rows, length, device)
        shift = past.shift
        if self.positions == "renumber":
            first = ids[:, :1] if kwargs.get("position_ids") is None else None
            turned, shift = renumbered(ids, plan, past.shift, valid, first)
        else:
            turned = lagging(plan.columns(ids), shift)
        count = counting(plan, start, turned.device)
        if self.family.mrope:
            count = torch.cat([count[None], turned[-3:] if turned.ndim == 3 else turned.expand(3, -1, -1)])

        merges = [merge.placed(self.positions) for merge in choice.merges]
        seen = plan.after(settled(mask, past, start, rows, device), start)
        window = getattr(self.family.text_model.config, "sliding_window", None)
        shortened = {
            **kwargs,
            "inputs_embeds": plan.rows(merged(embeddings, merges)),
            "position_ids": count,
            "attention_mask": prefilled(mask, seen, plan, kwargs.get("past_key_values"), window),
        }
        if not self.chooser.method.keeps_deepstack:
            shortened |= {"visual_pos_masks": None, "deepstack_visual_embeds": None}
        elif kwargs.get("visual_pos_masks") is not None:
            there, layers = kwargs["visual_pos_masks"], kwargs["deepstack_visual_embeds"]
            there, layers = deepstack(there, layers, merges, plan)
            shortened |= {"visual_pos_masks": there, "deepstack_visual_embeds": layers}

        ledger = Ledger(
            offset=past.offset + plan.dropped,
            settled=start + plan.length,
            firm=start + plan.length - plan.tail,
            valid=seen,
            padded=past.padded or (valid is not None and not bool(valid.all())),
            shift=shift,
            owner=self._owner,
        )
        self._plan = Plan(plan, ledger, None if self.family.mrope else turned)
        return shortened

    def _turn(self, rotary: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Masks are made from an unbroken count, rotations from the positions that the tokens have."""
        if self._plan is None or self._plan.turned is None:
            return None
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": self._plan.turned}
        states, _, *rest = args
        return (states, self._plan.turned, *rest), kwargs

    @trace.part("compaction")
    def _lengthen(self, text: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        plan, self._plan = self._plan, None
        prefill = None if self.inside is None else self.inside.end()
        if output is None or (plan is None and prefill is None):
            return None
        cache = output.past_key_values
        ledger = ledger_of(cache) if plan is None else plan.ledger
        if prefill is not None:
            self.selections, self.columns = prefill.selections(self.selections), prefill.columns(self.columns)
            prefill.restore(output)
            if prefill.ledgers:
                ledger = replace(ledger or Ledger(owner=self._owner), deeper=tuple(prefill.ledgers))
        if cache is not None and ledger is not None:
            keep_ledger(cache, ledger)
        if plan is None:
            return output
        output.last_hidden_state = plan.compaction.restore(output.last_hidden_state)
        if output.hidden_states is not None:
            output.hidden_states = tuple(plan.compaction.restore(states) for states in output.hidden_states)
        return output


def _masked(kwargs: dict[str, Any], ledger: Ledger, tokens: Tensor) -> dict[str, Any]:
    """The call of a model that adds tokens to a pruned cache. tokens: B×L or B×L×d."""
    rows, length = tokens.shape[:2]
    mask = continued(kwargs.get("attention_mask"), ledger, kwargs["past_key_values"], rows, length, tokens.device)
    return {**kwargs, "attention_mask": mask}
