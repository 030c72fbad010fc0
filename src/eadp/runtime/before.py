"""Pruning before the language model: its call is shortened, and its output restored to the original length.

One forward goes like this. `VisionCapture` reads the call of the base model. `_shorten_call` shortens the call of the
language model, `_set_positions` passes the positions to its rotary embedding, and `_restore_output` restores its
output. A call without images only gets its mask translated, if it continues from a pruned cache.
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
from eadp.models.vision_call import EncodedImage
from eadp.runtime.cache_map import CacheMap, cache_map_of, set_cache_map
from eadp.runtime.choose import Choice, Chooser
from eadp.runtime.compact import Compaction
from eadp.runtime.hooks import Hooks
from eadp.runtime.inside import InsideLanguageModel
from eadp.runtime.masks import Mask, continuation_mask, prefill_mask, valid_columns, valid_past_columns
from eadp.runtime.merge import apply_merges, shorten_deepstack
from eadp.runtime.positions import count_columns, logical_positions, move_back, renumber_positions
from eadp.runtime.prefill_inputs import PrefillInputs
from eadp.runtime.vision_capture import PrefillContext, VisionCapture

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class ShortenedCall:
    """One shortened call of the language model.

    Attributes:
        compaction: What happened to its columns.
        cache_map: What its cache has to remember.
        rotary_positions: The positions for the rotary embedding; None where the call's position ids are right for it.
    """

    compaction: Compaction
    cache_map: CacheMap
    rotary_positions: Tensor | None


class BeforeLanguageModel:
    """Prunes the visual tokens of a model before its language model, while its hooks are in place.

    Attributes:
        selections: What the last prefill kept, one per image.
        images: The images of the last prefill.
        columns: B×L, which columns of the last prefill's prompts stayed.
    """

    def __init__(
        self,
        capture: VisionCapture,
        chooser: Chooser,
        positions: Positions,
        inside: InsideLanguageModel | None = None,
    ) -> None:
        """Set up the pruning.

        Args:
            capture: What collects the images of a forward.
            chooser: What selects their tokens.
            positions: What kept tokens do with their positions.
            inside: What prunes further inside the language model, if anything does.
        """
        self.capture = capture
        self.adapter = capture.adapter
        self.chooser = chooser
        self.positions = positions
        self.inside = inside
        self.selections: list[Selection] = []
        self.images: list[EncodedImage] = []
        self.columns: Tensor | None = None
        self._shortened: ShortenedCall | None = None
        self._owner = weakref.ref(self.adapter.base)
        self._logical_mask: Mask = None

    def install(self, hooks: Hooks) -> None:
        """Hook into the model.

        Raises:
            ValueError: If the language model has no rotary embedding.
        """
        text = self.adapter.text_model
        if "rotary_emb" not in dict(text.named_children()):
            raise ValueError(
                f"{type(text).__name__} has no rotary embedding, so its tokens cannot keep their positions"
            )
        self.capture.install(hooks)
        if self.adapter.builds_masks:
            hooks.before(self.adapter.base, self._translate_mask)
        hooks.before(text, self._shorten_call)
        hooks.after(text, self._restore_output)
        hooks.before(text.get_submodule("rotary_emb"), self._set_positions)
        if self.inside is not None:
            self.inside.install(hooks)

    def _translate_mask(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """A base model that builds masks must build them from the physical one."""
        cache_map = cache_map_of(kwargs.get("past_key_values"))
        if cache_map is None or self.capture.has_images:
            return None
        self._logical_mask = kwargs.get("attention_mask")
        ids = kwargs.get("input_ids")
        return args, _with_physical_mask(kwargs, cache_map, ids if ids is not None else kwargs["inputs_embeds"])

    @trace.part("compaction")
    def _shorten_call(self, text: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        cache: Any = kwargs.get("past_key_values")
        cache_map = cache_map_of(cache)
        if self.capture.has_images:
            start = int(query_offset(cache)) if cache is not None else 0
            if start and not self.adapter.continues_with_images:
                raise ValueError(
                    "this model cannot place a new image on a cache that already holds a conversation; "
                    "start from an empty cache and the whole conversation"
                )
            past = cache_map or CacheMap()
            context, choice = self._choose(kwargs)
            shortened = kwargs if choice.changes_nothing else self._shorten(kwargs, choice, past, start)
            if self.inside is not None:
                plan = None if self._shortened is None else self._shortened.compaction
                inputs = PrefillInputs.from_call(kwargs, shortened, plan, past, start)
                self.inside.begin(inputs, context, choice, plan)
            if not choice.changes_nothing:
                return args, shortened
        if cache_map is None:
            return None
        if not self.capture.has_images:
            self._resume(self._logical_mask if self.adapter.builds_masks else kwargs.get("attention_mask"), cache_map)
        embeddings = kwargs["inputs_embeds"]
        kwargs = dict(kwargs) if self.adapter.builds_masks else _with_physical_mask(kwargs, cache_map, embeddings)
        if cache_map.shift is not None:
            rows, length = embeddings.shape[:2]
            ids = logical_positions(kwargs.get("position_ids"), cache.get_seq_length(), rows, length, embeddings.device)
            kwargs["position_ids"] = move_back(ids, cache_map.shift)
        return args, kwargs

    def _resume(self, mask: Mask, cache_map: CacheMap) -> None:
        if self.inside is not None:
            self.inside.resume(mask, cache_map)
        elif cache_map.deeper:
            raise ValueError(
                "this cache was cut between the layers of the language model; "
                "to continue from it, attach a method that prunes inside the language model"
            )

    def _choose(self, kwargs: dict[str, Any]) -> tuple[PrefillContext, Choice]:
        embeddings = kwargs["inputs_embeds"]
        with torch.no_grad():
            context = self.capture.context(embeddings.shape[1], kwargs.get("attention_mask"))
            choice = self.chooser.choose(context, embeddings[:: context.beams].detach())
        self.images = [placed.image for placed in context.images]
        self.selections, self.columns = choice.selections, choice.keep
        return context, choice.repeated(context.beams)

    def _shorten(self, kwargs: dict[str, Any], choice: Choice, past: CacheMap, start: int) -> dict[str, Any]:
        """The arguments of the call for the kept columns only. start: physical columns before it."""
        embeddings, mask = kwargs["inputs_embeds"], kwargs.get("attention_mask")
        rows, length = embeddings.shape[:2]
        device = embeddings.device
        keep, valid = choice.keep.to(device), valid_columns(mask, length)
        plan = Compaction.from_mask(keep if valid is None else keep & valid.to(device))

        ids = logical_positions(kwargs.get("position_ids"), start + past.offset, rows, length, device)
        shift = past.shift
        if self.positions == "renumber":
            first = ids[:, :1] if kwargs.get("position_ids") is None else None
            positions, shift = renumber_positions(ids, plan, past.shift, valid, first)
        else:
            positions = move_back(plan.take_columns(ids), shift)
        count = count_columns(plan, start, positions.device)
        if self.adapter.geometry.mrope:
            count = torch.cat([count[None], positions[-3:] if positions.ndim == 3 else positions.expand(3, -1, -1)])

        merges = [merge.with_columns(self.positions) for merge in choice.merges]
        all_valid = plan.valid_with_past(valid_past_columns(mask, past, start, rows, device), start)
        window = getattr(self.adapter.text_model.config, "sliding_window", None)
        shortened = {
            **kwargs,
            "inputs_embeds": plan.take_rows(apply_merges(embeddings, merges)),
            "position_ids": count,
            "attention_mask": prefill_mask(mask, all_valid, plan, kwargs.get("past_key_values"), window),
        }
        if not self.chooser.method.keeps_deepstack:
            shortened |= {"visual_pos_masks": None, "deepstack_visual_embeds": None}
        elif kwargs.get("visual_pos_masks") is not None:
            is_visual, layers = kwargs["visual_pos_masks"], kwargs["deepstack_visual_embeds"]
            is_visual, layers = shorten_deepstack(is_visual, layers, merges, plan)
            shortened |= {"visual_pos_masks": is_visual, "deepstack_visual_embeds": layers}

        cache_map = CacheMap(
            offset=past.offset + plan.dropped,
            prefilled=start + plan.length,
            uncroppable=start + plan.length - plan.tail,
            valid=all_valid,
            padded=past.padded or (valid is not None and not bool(valid.all())),
            shift=shift,
            owner=self._owner,
        )
        self._shortened = ShortenedCall(plan, cache_map, None if self.adapter.geometry.mrope else positions)
        return shortened

    def _set_positions(self, rotary: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Masks are built from a count without gaps, rotary embeddings from the positions of the tokens."""
        if self._shortened is None or self._shortened.rotary_positions is None:
            return None
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": self._shortened.rotary_positions}
        states, _, *rest = args
        return (states, self._shortened.rotary_positions, *rest), kwargs

    @trace.part("compaction")
    def _restore_output(self, text: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        shortened, self._shortened = self._shortened, None
        prefill = None if self.inside is None else self.inside.end()
        if output is None or (shortened is None and prefill is None):
            return None
        cache = output.past_key_values
        cache_map = cache_map_of(cache) if shortened is None else shortened.cache_map
        if prefill is not None:
            self.selections, self.columns = prefill.selections(self.selections), prefill.columns(self.columns)
            prefill.restore(output)
            if prefill.cache_maps:
                cache_map = replace(cache_map or CacheMap(owner=self._owner), deeper=tuple(prefill.cache_maps))
        if cache is not None and cache_map is not None:
            set_cache_map(cache, cache_map)
        if shortened is None:
            return output
        restore = shortened.compaction.restore
        output.last_hidden_state = restore(output.last_hidden_state)
        if output.hidden_states is not None:
            output.hidden_states = tuple(restore(states) for states in output.hidden_states)
        return output


def _with_physical_mask(kwargs: dict[str, Any], cache_map: CacheMap, tokens: Tensor) -> dict[str, Any]:
    """The arguments of a call that adds tokens, B×L or B×L×d, to a pruned cache."""
    rows, length = tokens.shape[:2]
    mask = continuation_mask(
        kwargs.get("attention_mask"), cache_map, kwargs["past_key_values"], rows, length, tokens.device
    )
    return {**kwargs, "attention_mask": mask}
