"""Pruning before the language model: its call is shortened, and its output restored to the original length.

One forward with images goes like this. `_around_base` makes the call's state. `_shorten_call` shortens the call of the
language model, `_set_positions` passes the positions to its rotary embedding, and `_restore_output` restores its
output. A call without images only gets its mask translated, if it continues from a pruned cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from eadp.compat import ENCODER_OUTPUTS, query_offset
from eadp.core import trace
from eadp.core.deferred import Deferred
from eadp.methods import BeforeMethod
from eadp.models.adapter import FamilyAdapter
from eadp.runtime.attachment import Attachment
from eadp.runtime.cache_map import CacheMap, PrunedCache, cache_map_of, pruned_cache_of, set_cache_map
from eadp.runtime.call import PrefillCall, PrefillResult, ShortenedCall, in_call, present_call
from eadp.runtime.continuation import ContinuationPass
from eadp.runtime.decoder import Decoder
from eadp.runtime.hooks import Forward, Hooks
from eadp.runtime.inside import InsideLanguageModel, begin_prefill
from eadp.runtime.kept_columns import Choice
from eadp.runtime.masks import prefill_mask, valid_past_columns, with_physical_mask
from eadp.runtime.merge import apply_merges, apply_moves, shorten_deepstack
from eadp.runtime.merge_batch import MergeBatch
from eadp.runtime.positions import count_columns, logical_positions, move_back, positions_behind, renumber_positions
from eadp.runtime.prefill_inputs import PrefillInputs
from eadp.runtime.prompt_reader import PromptReader
from eadp.runtime.prompts import ShownPrompt
from eadp.runtime.settings import Question, Settings
from eadp.runtime.vision_capture import ModelCall, PrefillContext, VisionCapture, check_call, has_images
from eadp.runtime.vision_recorder import VisionRecorder, vision_calls

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

MODEL_CALL = "eadp_model_call"
"""The argument in which the whole model passes its `ModelCall` to its base model."""


class Pruning:
    """The hooks that prune a model. They hold no state of a call, so threads may call the model at the same time.

    Attributes:
        session: That of the model's attachment while these hooks are to work. Calls that begin before or after are left
            alone, so that no call meets only some of the hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: FamilyAdapter,
        attachment: Attachment,
        settings: Callable[[], Settings],
        question: Callable[[Question | None, int, int, Tensor | None], str],
        finish: Callable[[PrefillResult], None],
    ) -> None:
        """Set up the hooks.

        Args:
            model: The model that the user calls.
            adapter: Its adapter.
            attachment: Its attachment.
            settings: Gives the settings for a call that begins.
            question: Gives the question of a row of the batch, from the setting and from its ids without padding.
            finish: Called with what each prefill kept.
        """
        self.model = model
        self.adapter = adapter
        self.attachment = attachment
        self.session = object()
        self._settings = settings
        self._finish = finish
        self._reader = PromptReader(adapter, lambda: self.is_active, settings, question)
        self._recorder = VisionRecorder(
            adapter,
            lambda: self.is_active,
            self._run,
            self._entering_method,
            self._called_base,
            self._shown_prompt,
            self._add_output,
        )
        self._inside = InsideLanguageModel(adapter, self)

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
        self._recorder.install(hooks)
        self._reader.install(hooks, self.model)
        if self.model is not self.adapter.base:
            hooks.before(self.model, self._enter_model)
        hooks.around(self.adapter.base, self._around_base)
        hooks.before(text, self._shorten_call)
        hooks.after(text, self._restore_output)
        hooks.before(text.get_submodule("rotary_emb"), self._set_positions)

    def prepare(self, hooks: Hooks, settings: Settings) -> None:
        """Hook into what some settings need besides; it stays until the model is detached."""
        self._recorder.probe(hooks, settings.entering)
        if settings.inside is not None:
            self._inside.install(hooks, settings.inside)

    @property
    def is_active(self) -> bool:
        """Whether calls that begin now are pruned."""
        return self.attachment.session is self.session

    def _run(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.attachment.run(self.session, forward, args, kwargs)

    # The vision side.

    def _entering_method(self) -> BeforeMethod:
        call = present_call(self, 0)
        return (self._settings() if call is None else call.settings).entering

    def _called_base(self) -> nn.Module:
        call = present_call(self, 0)
        return self.adapter.base if call is None else call.capture.adapter.base

    def _shown_prompt(self) -> ShownPrompt:
        call = present_call(self, 0)
        return self._reader.shown() if call is None else ShownPrompt(call.capture.sizes)

    def _add_output(self, output: Any) -> None:
        if (call := present_call(self, 0)) is not None:
            call.capture.add(output)

    # The whole model and its base model.

    def _enter_model(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if not has_images(kwargs):
            return None
        # In assisted decoding the first drafts follow the prompt in the prefill itself, but are not part of it. The
        # number of logits shows them: those of the prompt's last token and of each draft are asked for.
        logits, cache = kwargs.get("logits_to_keep"), kwargs.get("past_key_values")
        drafts = logits - 1 if isinstance(logits, int) and logits > 1 and cache is not None else 0
        call = ModelCall(vision_calls(kwargs.get(ENCODER_OUTPUTS) or {}), drafts, kwargs.get("labels"))
        return args, {**kwargs, MODEL_CALL: call}

    def _around_base(self, base: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        model_call = kwargs.pop(MODEL_CALL, None) or ModelCall()
        if not self.is_active:
            return forward(*args, **kwargs)
        check_call(base, self.adapter.geometry, args, kwargs)
        if has_images(kwargs):
            return self._prefill(model_call, base, forward, args, kwargs)
        pruned = pruned_cache_of(kwargs.get("past_key_values"))
        if pruned is None:
            return forward(*args, **kwargs)
        if self.adapter.builds_masks:
            # It must build them from the physical one.
            pruned.logical_mask = kwargs.get("attention_mask")
            ids = kwargs.get("input_ids")
            tokens = ids if ids is not None else kwargs["inputs_embeds"]
            kwargs = with_physical_mask(kwargs, pruned.cache_map, tokens)
        return self._run(forward, args, kwargs)

    def _prefill(
        self, model_call: ModelCall, base: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = self._begin_prefill(model_call, base, args, kwargs)
        with in_call(call):
            output = self._run(forward, args, kwargs)
        if call.result is None:
            raise RuntimeError(
                "the language model ran past the hooks of eadp.attach, as a model does that was compiled before; "
                "attach first, and compile afterwards"
            )
        self._finish(call.result)
        return output

    # Ids are read on the host: compiled, that would be many small graphs.
    @torch.compiler.disable
    def _begin_prefill(
        self, model_call: ModelCall, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PrefillCall:
        settings = self._settings()
        adapter, questions = self.adapter.on(base), self._reader.questions(settings)
        capture = VisionCapture(adapter, settings.entering, questions, model_call, args, kwargs)
        call = PrefillCall(self, settings, capture, model_call.drafts)
        if capture.prompt.shows_padding:
            # Before the vision tower: afterwards, the language model would wait for the text encoder.
            call.texts = self._reader.encode(settings, capture)
        return call

    # The language model.

    def _shorten_call(self, text: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        embeddings, cache = kwargs.get("inputs_embeds"), kwargs.get("past_key_values")
        pruned = pruned_cache_of(cache)
        call = None if embeddings is None else present_call(self, embeddings.shape[1])
        if call is not None:
            return args, self._shorten_prefill(call, text, kwargs, pruned)
        return None if pruned is None else (args, self._continue(text, kwargs, pruned))

    # A selection branches on data at every step: compiled, it would be many small graphs.
    @torch.compiler.disable
    @trace.part("compaction")
    def _shorten_prefill(
        self, call: PrefillCall, text: nn.Module, kwargs: dict[str, Any], pruned: PrunedCache | None
    ) -> dict[str, Any]:
        cache: Any = kwargs.get("past_key_values")
        start = int(query_offset(cache)) if cache is not None else 0
        if start and not self.adapter.continues_with_images:
            raise ValueError(
                "this model cannot place a new image on a cache that already holds a conversation; "
                "start from an empty cache and the whole conversation"
            )
        past = CacheMap() if pruned is None else pruned.cache_map
        if pruned is not None:
            pruned.continuation = None
        context, choice = self._choose(call, kwargs)
        if choice.changes_nothing:
            shortened, positions = self._unshortened(kwargs, pruned, start)
        else:
            shortened, positions = self._shorten(call, text, kwargs, choice, past, start)
        if call.settings.inside is not None:
            if not self._inside.is_installed:
                raise RuntimeError(
                    "these settings were made by another thread while the model was not attached; make them again"
                )
            plan = None if call.shortened is None else call.shortened.compaction
            inputs = PrefillInputs.from_call(kwargs, shortened, self._rotary_ids(positions), choice, plan, past, start)
            call.prefill = begin_prefill(call, text, inputs, context, choice, plan)
        return shortened

    def _choose(self, call: PrefillCall, kwargs: dict[str, Any]) -> tuple[PrefillContext, Choice]:
        embeddings, capture = kwargs["inputs_embeds"], call.capture
        with torch.no_grad():
            context = capture.context(kwargs.get("attention_mask"))
            texts = self._reader.encode(call.settings, capture) if call.texts is None else call.texts
            chooser = call.settings.chooser(capture.adapter)
            choice = chooser.choose(context, embeddings[:: context.beams].detach(), texts)
        layouts = [placed.layout for placed in context.images]
        call.result = PrefillResult(choice.selections, layouts, choice.columns())
        return context, choice.repeated(context.beams)

    def _unshortened(
        self, kwargs: dict[str, Any], pruned: PrunedCache | None, start: int
    ) -> tuple[dict[str, Any], Tensor]:
        """The arguments of a prefill that keeps all columns, and its positions. start: physical columns before it."""
        embeddings, past = kwargs["inputs_embeds"], CacheMap() if pruned is None else pruned.cache_map
        rows, length = embeddings.shape[:2]
        ids = logical_positions(kwargs.get("position_ids"), start + past.offset, rows, length, embeddings.device)
        positions = move_back(ids, past.shift)
        if pruned is not None and not self.adapter.builds_masks:
            kwargs = with_physical_mask(kwargs, past, embeddings)
        return (kwargs if past.shift is None else {**kwargs, "position_ids": positions}), positions

    def _continue(self, text: nn.Module, kwargs: dict[str, Any], pruned: PrunedCache) -> dict[str, Any]:
        """The arguments of a call that adds tokens to a pruned cache."""
        cache_map, embeddings = pruned.cache_map, kwargs["inputs_embeds"]
        rows, length = embeddings.shape[:2]
        logical_mask = pruned.logical_mask if self.adapter.builds_masks else kwargs.get("attention_mask")
        pruned.logical_mask, pruned.continuation = None, None
        moves = cache_map.shift is not None or any(deeper.shift is not None for _, deeper in cache_map.deeper)
        logical = kwargs.get("position_ids"), kwargs["past_key_values"].get_seq_length()
        kwargs, ids = dict(kwargs), None
        if not self.adapter.builds_masks:
            if cache_map.shift is not None and cache_map.extends_in_one_launch(logical_mask, embeddings.device):
                mask, ids = cache_map.extend_in_one_launch(logical_mask, logical_mask.dtype, *logical, length)
                kwargs["attention_mask"] = mask
            else:
                kwargs = with_physical_mask(kwargs, cache_map, embeddings)
        if moves:
            if ids is None:
                ids = positions_behind(*logical, rows, length, cache_map.shift, embeddings.device)
            kwargs["position_ids"] = ids
        if cache_map.deeper:
            if not self._inside.is_installed:
                raise ValueError(
                    "this cache was cut between the layers of the language model; "
                    "to continue from it, attach a method that prunes inside the language model"
                )
            rotary_ids = None if ids is None else self._rotary_ids(ids)
            pruned.continuation = ContinuationPass(Decoder(text), logical_mask, cache_map, rotary_ids)
        return kwargs

    def _rotary_ids(self, ids: Tensor) -> Tensor:
        """The position ids that the rotary embedding gets: with M-RoPE, the three axes of coordinates."""
        if not self.adapter.geometry.mrope:
            return ids
        return ids[-3:] if ids.ndim == 3 else ids.expand(3, -1, -1)

    def _shorten(
        self,
        call: PrefillCall,
        text: nn.Module,
        kwargs: dict[str, Any],
        choice: Choice,
        past: CacheMap,
        start: int,
    ) -> tuple[dict[str, Any], Tensor]:
        """The arguments of a prefill for the kept columns only, and their positions. start: physical columns before."""
        kept_positions = call.settings.positions or call.settings.entering.positions_for(self.adapter.config.model_type)
        embeddings, mask = kwargs["inputs_embeds"], kwargs.get("attention_mask")
        rows, length = embeddings.shape[:2]
        device = embeddings.device
        plan, valid = choice.kept.compaction(device), choice.valid

        given, shift = kwargs.get("position_ids"), past.shift
        if kept_positions == "renumber":
            # Positions that are only counted do not have to be counted on the device.
            place = torch.device("cpu") if given is None and shift is None else device
            ids = logical_positions(given, start + past.offset, rows, length, place)
            first = ids[:, :1] if given is None else None
            positions, shift = renumber_positions(ids, plan, choice.kept.counts, shift, valid, first)
            positions, shift = positions.to(device), None if shift is None else shift.to(device)
        else:
            ids = logical_positions(given, start + past.offset, rows, length, device)
            positions = move_back(plan.take_columns(ids), shift)
        count = count_columns(plan, start, positions.device)
        if self.adapter.geometry.mrope:
            count = torch.cat([count[None], self._rotary_ids(positions)])

        layers = kwargs.get("deepstack_visual_embeds") or []
        together = MergeBatch.of(choice.merges, choice.kept.chosen, plan, kept_positions, [embeddings, *layers])
        merges = [merge.with_columns(kept_positions) for merge in choice.merges if together is None]
        # A method inside the language model looks for newlines at the ends of rows.
        moves = choice.moves if kept_positions == "renumber" and call.settings.inside is None else []
        all_valid = plan.valid_with_past(valid_past_columns(mask, past, start, rows, device), start)
        window = getattr(text.config, "sliding_window", None)
        shortened = {
            **kwargs,
            "inputs_embeds": plan.take_rows(apply_moves(apply_merges(embeddings, merges), moves))
            if together is None
            else together.apply(embeddings, plan),
            "position_ids": count,
            "attention_mask": prefill_mask(mask, all_valid, plan, kwargs.get("past_key_values"), window),
        }
        if not call.settings.entering.keeps_deepstack:
            shortened |= {"visual_pos_masks": None, "deepstack_visual_embeds": None}
        elif kwargs.get("visual_pos_masks") is not None:
            merge_all = None if together is None else together.apply_to_visual
            is_visual, layers = shorten_deepstack(kwargs["visual_pos_masks"], layers, merges, plan, merge_all)
            shortened |= {"visual_pos_masks": is_visual, "deepstack_visual_embeds": layers}

        cache_map = CacheMap(
            offset=past.offset + plan.dropped,
            prefilled=start + plan.length,
            uncroppable=start + plan.length - plan.tail,
            valid=all_valid,
            padded=past.padded or valid is not None,
            shift=shift,
            attachment=self.attachment,
        )
        call.shortened = ShortenedCall(plan, cache_map, None if self.adapter.geometry.mrope else positions)
        return shortened, positions

    def _set_positions(self, rotary: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Masks are built from a count without gaps, rotary embeddings from the positions of the tokens."""
        call = present_call(self, args[0].shape[1])
        if call is None or call.shortened is None or call.shortened.rotary_positions is None:
            return None
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": call.shortened.rotary_positions}
        states, _, *rest = args
        return (states, call.shortened.rotary_positions, *rest), kwargs

    def _restore_output(self, text: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        embeddings, pruned = kwargs.get("inputs_embeds"), pruned_cache_of(kwargs.get("past_key_values"))
        if pruned is not None:
            pruned.continuation = None
        call = None if embeddings is None else present_call(self, embeddings.shape[1])
        return None if call is None or output is None else self._restore_prefill(call, output)

    @torch.compiler.disable
    @trace.part("compaction")
    def _restore_prefill(self, call: PrefillCall, output: Any) -> Any:
        shortened, prefill, result = call.shortened, call.prefill, call.result
        if result is None or (shortened is None and prefill is None):
            return output
        cache = output.past_key_values
        cache_map = cache_map_of(cache) if shortened is None else shortened.cache_map
        if prefill is not None:
            log, entered = prefill.log, result.columns
            columns = Deferred(lambda: log.columns(entered()))
            call.result = replace(result, selections=log.selections(result.selections), columns=columns)
            prefill.restore(output)
            if prefill.cache_maps:
                cache_map = cache_map or CacheMap(attachment=self.attachment)
                cache_map = replace(cache_map, deeper=tuple(prefill.cache_maps))
        if cache is not None and cache_map is not None:
            set_cache_map(cache, cache_map)
        if shortened is None:
            return output
        restore = shortened.compaction.restore
        output.last_hidden_state = restore(output.last_hidden_state)
        if output.hidden_states is not None:
            output.hidden_states = tuple(restore(states) for states in output.hidden_states)
        return output
