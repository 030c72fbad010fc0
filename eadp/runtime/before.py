"""Pruning before the language model: its call is shortened, its output lengthened again.

The order of one forward: `_enter` (base model), the vision side reports what it saw, `_shorten` (language model),
`_turn` (its rotary embedding), `_lengthen` (language model), `_leave` (base model). A call without images only has its
mask translated, and most not even that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from eadp.core import Selection
from eadp.models.family import Family, Picture, Prompt
from eadp.runtime.choose import Choice, Chooser, Placed, place
from eadp.runtime.compact import Compaction
from eadp.runtime.hooks import SEEN, Hooks, Watch
from eadp.runtime.inside import InsideLanguageModel
from eadp.runtime.ledger import Ledger, keep_ledger, ledger_of
from eadp.runtime.masks import Mask, continued, flat, joined, prefilled, segment
from eadp.runtime.merge import deepstack, merged
from eadp.runtime.passes import Prompted
from eadp.runtime.positions import Positions, counting, logical, repacked

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

PIXELS = ("pixel_values", "pixel_values_videos")


@dataclass
class Call:
    """One forward of the base model. outputs: of the vision side, by modality. mask: as it was given."""

    ids: Tensor | None
    embeddings: Tensor | None
    outputs: dict[str, Any]
    mask: Mask


@dataclass(frozen=True)
class Plan:
    """One shortened call of the language model. ledger: what its cache will have to remember; turned: for RoPE."""

    compaction: Compaction
    ledger: Ledger
    turned: Tensor | None


class BeforeLanguageModel:
    """Prunes the visual tokens of a model as long as its hooks are in place."""

    def __init__(
        self,
        family: Family,
        chooser: Chooser,
        positions: Positions,
        question: Callable[[int, Tensor | None], str],
        inside: InsideLanguageModel | None = None,
    ) -> None:
        self.family = family
        self.chooser = chooser
        self.positions = positions
        self.question = question
        self.inside = inside
        self.last: list[Selection] = []
        self.pictures: list[Picture] = []
        self.columns: Tensor | None = None
        self._owner = weakref.ref(family.base)
        self._call: Call | None = None
        self._plan: Plan | None = None
        self._placed: list[Placed] = []

    def install(self, hooks: Hooks) -> None:
        base, text = self.family.base, self.family.text_model
        watch = Watch(self._report)
        for modality in self.family.modalities:
            name = f"get_{modality}_features"
            hooks.override(base, name, watch.over(getattr(base, name), modality))
        hooks.before(base, self._enter)
        hooks.after(base, self._leave)
        hooks.before(text, self._shorten)
        hooks.after(text, self._lengthen)
        hooks.before(text.get_submodule("rotary_emb"), self._turn)
        if self.inside is not None:
            self.inside.install(hooks)

    # The base model.

    def _enter(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        ids = args[0] if args else kwargs.get("input_ids")
        cache, outputs = kwargs.get("past_key_values"), kwargs.get("mm_encoder_outputs") or {}
        if not isinstance(outputs, dict):
            raise ValueError("mm_encoder_outputs must be a dict by modality, as generate makes it")
        outputs = {modality: output for modality, output in outputs.items() if output is not None}
        self._call = Call(ids, kwargs.get("inputs_embeds"), outputs, kwargs.get("attention_mask"))
        if kwargs.get("cu_seq_lens_q") is not None or not isinstance(cache, Cache | None):
            raise ValueError(
                "packed sequences and continuous batching cannot be pruned; detach, or generate in ordinary batches"
            )
        if outputs or any(kwargs.get(name) is not None for name in PIXELS):
            return None
        self._refuse_lost_images(ids)
        ledger = ledger_of(cache)
        if ledger is None or not self.family.makes_masks:
            return None
        return args, self._continued(kwargs, ledger, ids if ids is not None else kwargs["inputs_embeds"])

    def _leave(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._call = None

    def _report(self, output: Any) -> None:
        if self._call is not None:
            self._call.outputs[getattr(output, SEEN).modality] = output

    def _refuse_lost_images(self, ids: Tensor | None) -> None:
        if ids is None or ids.shape[1] == 1:
            return
        for modality in self.family.modalities:
            if bool((ids == self.family.token_id(modality)).any()):
                raise ValueError(
                    f"the prompt has {modality} placeholders, but this call carries no {modality} features; chunked "
                    f"prefill (prefill_chunk_size) loses them: generate without it, and pass the {modality}s"
                )

    # The language model.

    def _shorten(self, text: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        call, cache = self._call, kwargs.get("past_key_values")
        ledger = ledger_of(cache)
        if call is not None and call.outputs:
            start = int(cache.get_query_offset()) if cache is not None else 0
            if start and not self.family.continues_with_images:
                raise ValueError(
                    "this model cannot place a new image on a cache that already holds a conversation; "
                    "start from an empty cache and the whole conversation"
                )
            choice = self._choose(call, kwargs["inputs_embeds"], kwargs.get("attention_mask"))
            self.last, self.columns = choice.selections, choice.keep
            shortened = kwargs if choice.changes_nothing else self._shortened(kwargs, choice, ledger or Ledger(), start)
            if self.inside is not None:
                prompted = self._prompted(shortened, kwargs.get("attention_mask"), choice, ledger or Ledger(), start)
                plan = None if self._plan is None else self._plan.compaction
                self.inside.begin(prompted, self._placed, choice, plan)
            if not choice.changes_nothing:
                return args, shortened
        elif ledger is not None and self.inside is not None:
            self.inside.resume(kwargs.get("attention_mask") if call is None else call.mask, ledger)
        if ledger is None:
            return None
        if ledger.deeper and self.inside is None:
            raise ValueError(
                "this cache was cut between the layers of the language model; "
                "attach a method that prunes inside it to go on"
            )
        kwargs = {**kwargs} if self.family.makes_masks else self._continued(kwargs, ledger, kwargs["inputs_embeds"])
        if ledger.shift is not None:
            rows, length = kwargs["inputs_embeds"].shape[:2]
            ids = logical(kwargs.get("position_ids"), cache.get_seq_length(), rows, length, ledger.shift.device)
            kwargs["position_ids"] = ids - ledger.shift[:, None]
        return args, kwargs

    def _continued(self, kwargs: dict[str, Any], ledger: Ledger, tokens: Tensor) -> dict[str, Any]:
        rows, length = tokens.shape[:2]
        cache, mask = kwargs["past_key_values"], kwargs.get("attention_mask")
        return {**kwargs, "attention_mask": continued(mask, ledger, cache, rows, length, tokens.device)}

    def _choose(self, call: Call, embeddings: Tensor, mask: Mask) -> Choice:
        seen = [(getattr(output, SEEN, None), output) for output in call.outputs.values()]
        if any(each is None for each, _ in seen):
            raise ValueError(
                "mm_encoder_outputs from before eadp.attach do not say what their images were; make them anew"
            )
        beams = max(len(output.pooler_output) // len(each.lengths) for each, output in seen)
        ids = None if call.ids is None else call.ids[::beams].cpu()
        valid = segment(mask, embeddings.shape[1])

        def question(row: int) -> str:
            if ids is None or valid is None:
                return self.question(row, None if ids is None else ids[row])
            return self.question(row, ids[row][valid[row * beams].cpu()])

        prompts = {}
        for modality in call.outputs:
            there = self._placeholders(call, modality)[::beams].cpu()
            prompts[modality] = Prompt(ids, [row.nonzero().flatten() for row in there])
        with torch.no_grad():
            placed = place(self.family, seen, prompts)
            self._placed, self.pictures = placed, [each.picture for each in placed]
            choice = self.chooser.choose(placed, embeddings[::beams].detach(), question)
        return choice.repeated(beams)

    def _placeholders(self, call: Call, modality: str) -> Tensor:
        token = self.family.token_id(modality)
        if call.embeddings is None:
            return call.ids == token
        embed = self.family.text_model.get_submodule("embed_tokens")
        return (call.embeddings == embed(torch.tensor(token, device=call.embeddings.device))).all(-1)

    def _shortened(self, kwargs: dict[str, Any], choice: Choice, past: Ledger, start: int) -> dict[str, Any]:
        embeddings, mask = kwargs["inputs_embeds"], kwargs.get("attention_mask")
        rows, length = embeddings.shape[:2]
        device = embeddings.device
        keep, valid = choice.keep.to(device), segment(mask, length)
        plan = Compaction.of(keep if valid is None else keep & valid.to(device))

        ids = logical(kwargs.get("position_ids"), start + past.offset, rows, length, device)
        turned, shift = plan.columns(ids), past.shift
        if self.positions == "repack":
            turned, shift = repacked(ids, plan, past.shift, counted=kwargs.get("position_ids") is None)
        elif shift is not None:
            turned = turned - shift[:, None]
        count = counting(plan, start, device)
        if self.family.mrope:
            coordinates = turned[-3:] if turned.ndim == 3 else turned.expand(3, -1, -1)
            count, turned = torch.cat([count[None], coordinates]), None

        earlier = self._earlier(mask, past, start)
        seen = joined(past.physical(earlier, rows, start, device) if start else None, plan, start)
        cache = kwargs.get("past_key_values")
        window = getattr(self.family.text_model.config, "sliding_window", None)
        shortened = {
            **kwargs,
            "inputs_embeds": plan.rows(merged(embeddings, choice.merges)),
            "position_ids": count,
            "attention_mask": prefilled(mask, seen, plan, start, cache, window),
        }
        if kwargs.get("visual_pos_masks") is not None:
            there, layers = kwargs["visual_pos_masks"], kwargs["deepstack_visual_embeds"]
            there, layers = deepstack(there, layers, choice.merges, plan, keep)
            shortened |= {"visual_pos_masks": there, "deepstack_visual_embeds": layers}

        ledger = Ledger(
            offset=past.offset + plan.dropped,
            settled=start + plan.length,
            valid=seen,
            padded=past.padded or (valid is not None and not bool(valid.all())),
            shift=shift,
            owner=self._owner,
        )
        self._plan = Plan(plan, ledger, turned)
        return shortened

    def _earlier(self, mask: Mask, past: Ledger, start: int) -> Tensor | None:
        """B×logical, the 2-D mask of what came before this call."""
        mask = flat(mask)
        return mask[:, : start + past.offset] if mask is not None and mask.ndim == 2 else mask

    def _prompted(self, shortened: dict[str, Any], mask: Mask, choice: Choice, past: Ledger, start: int) -> Prompted:
        length = choice.keep.shape[1]
        valid = segment(mask, length) if self._plan is None else self._plan.compaction.valid
        return Prompted(
            embeddings=shortened["inputs_embeds"].detach(),
            mask=shortened.get("attention_mask"),
            valid=None if valid is None or bool(valid.all()) else valid,
            past=past,
            start=start,
            earlier=self._earlier(mask, past, start),
            length=length,
        )

    def _turn(self, rotary: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Masks are made from an unbroken count, rotations from the positions that the tokens have."""
        if self._plan is None or self._plan.turned is None:
            return None
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": self._plan.turned}
        states, _, *rest = args
        return (states, self._plan.turned, *rest), kwargs

    def _lengthen(self, text: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        plan, self._plan = self._plan, None
        prefill = None if self.inside is None else self.inside.end()
        if output is None or (plan is None and prefill is None):
            return None
        cache = output.past_key_values
        ledger = ledger_of(cache) if plan is None else plan.ledger
        if prefill is not None:
            self.last, self.columns = prefill.selections(self.last), prefill.columns(self.columns, self._placed)
            prefill.restore(output)
            if prefill.ledgers:
                ledger = replace(ledger or Ledger(owner=self._owner), deeper=tuple(prefill.ledgers))
        if cache is not None and ledger is not None:
            keep_ledger(cache, ledger)
        if plan is not None:
            restore(output, plan.compaction)
        return output


def restore(output: Any, plan: Compaction) -> None:
    """Everything that the language model gives back to the length of the prompt."""
    output.last_hidden_state = plan.restore(output.last_hidden_state)
    if output.hidden_states is not None:
        output.hidden_states = tuple(plan.restore(states) for states in output.hidden_states)
