"""Pruning inside the language model: its layers pass on fewer tokens than they got.

A prefill is cut at the input of some layers: hidden states, position embeddings and masks, and so what the layers from
there on write to the KV cache. Later calls on that cache find layers of different lengths, so each gets its own mask,
and its own positions where tokens are renumbered. Layer 0 always sees everything that enters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from eadp.compat import PROCESS_DEEPSTACK
from eadp.methods.inside import InsideMethod, scale_layers
from eadp.models.adapter import FamilyAdapter
from eadp.models.vision_call import EncodedImage
from eadp.runtime.cache_map import pruned_cache_of
from eadp.runtime.call import PrefillCall, present_call
from eadp.runtime.compact import Compaction
from eadp.runtime.decoder import Decoder
from eadp.runtime.forward_passes import PrefillPass
from eadp.runtime.hooks import Hooks
from eadp.runtime.kept_columns import Choice
from eadp.runtime.merge import shorten_deepstack
from eadp.runtime.prefill_inputs import PrefillInputs
from eadp.runtime.probe import AttentionProbe, Report
from eadp.runtime.remaining_tokens import RemainingImage, RemainingTokens
from eadp.runtime.vision_capture import PrefillContext

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class InsideLanguageModel:
    """The hooks that cut the visual tokens between the layers of a language model."""

    def __init__(self, adapter: FamilyAdapter, owner: Any) -> None:
        """Set up the hooks.

        Args:
            adapter: The adapter of the model.
            owner: That of the calls which are cut.
        """
        self.text: Any = adapter.text_model
        self.owner = owner
        self.is_installed = False
        self._probed: set[int] = set()

    def install(self, hooks: Hooks, method: InsideMethod) -> None:
        """Hook into the layers, and into the attention that a method looks at, unless that is done already."""
        layers = list(self.text.layers)[: self.text.config.num_hidden_layers]
        if not self.is_installed:
            for index, layer in enumerate(layers):
                hooks.before(layer, partial(self._enter_layer, index))
            if (add := getattr(self.text, PROCESS_DEEPSTACK, None)) is not None:
                hooks.override(self.text, PROCESS_DEEPSTACK, self._wrap_deepstack(add))
            self.is_installed = True
        behind = method.attention_from == "previous"
        for index in {cut - behind for cut in scale_layers(method.layers, len(layers))} - self._probed:
            AttentionProbe(layers[index].get_submodule("self_attn"), partial(self._find_report, index)).install(hooks)
            self._probed.add(index)

    def _enter_layer(
        self, index: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        states, *others = args
        pruned = pruned_cache_of(kwargs.get("past_key_values"))
        entered: Any = None if pruned is None else pruned.continuation
        if entered is None:
            entered = self._prefill(states.shape[1])
        if entered is None:
            return None
        states, kwargs = entered.enter_layer(index, layer, states, kwargs)
        return (states, *others), kwargs

    def _prefill(self, length: int) -> PrefillPass | None:
        call = present_call(self.owner, length)
        return None if call is None else call.prefill

    def _find_report(self, index: int, queries: int) -> Report | None:
        prefill = self._prefill(queries)
        return None if prefill is None else prefill.report_at(index)

    def _wrap_deepstack(self, add: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Shorten and merge what a model adds to its visual tokens after its first layers, as the tokens were."""

        def add_shortened(states: Tensor, is_visual: Tensor, rows: Tensor) -> Tensor:
            prefill = self._prefill(states.shape[1])
            for cut in () if prefill is None else prefill.cuts:
                is_visual, (rows,) = shorten_deepstack(is_visual, [rows], cut.merges, cut.plan)
            return add(states, is_visual, rows)

        return add_shortened


def begin_prefill(
    call: PrefillCall,
    text: nn.Module,
    inputs: PrefillInputs,
    context: PrefillContext,
    choice: Choice,
    plan: Compaction | None,
) -> PrefillPass:
    """Begin the cuts of a prefill.

    Args:
        call: The call, whose settings have a method inside the language model.
        text: The language model.
        inputs: What enters the first layer.
        context: The images of the prompts.
        choice: What a method before the language model kept.
        plan: What that did to the columns; None where it dropped nothing.
    """
    settings, adapter, decoder = call.settings, call.capture.adapter, Decoder(text)
    method: Any = settings.inside
    if text.training and getattr(text, "gradient_checkpointing", False):
        raise ValueError(
            f"{method.name} cannot cut layers that run a second time for their gradients; "
            "turn gradient checkpointing off, or prune before the language model"
        )
    return PrefillPass(
        inputs,
        _remaining_tokens(call, inputs, context, choice, plan, method, decoder.config.num_hidden_layers),
        context.beams,
        method,
        settings.positions or method.positions_for(adapter.config.model_type),
        settings.newlines or method.newlines,
        decoder,
        adapter.builds_masks,
    )


def _remaining_tokens(
    call: PrefillCall,
    inputs: PrefillInputs,
    context: PrefillContext,
    choice: Choice,
    plan: Compaction | None,
    method: InsideMethod,
    depth: int,
) -> list[RemainingTokens]:
    """The images' tokens that enter the first layer, by budget. depth: the number of layers."""
    fill = None if plan is None else plan.fill.cpu()
    keep = choice.kept.keep.cpu().bool()
    is_prompt = torch.ones(inputs.embeddings.shape[:2], dtype=torch.bool)
    if inputs.valid is not None:
        is_prompt &= inputs.valid
    if call.drafts:
        is_prompt[:, -call.drafts :] = False
    is_text, groups, selections = is_prompt.clone(), [], iter(choice.selections)
    for group in call.settings.chooser(call.capture.adapter).group_by_budget(context.images):
        groups.append(list[RemainingImage]())
        for placed in group:
            row = placed.row * context.beams
            columns = placed.columns if fill is None else fill[row, placed.columns]
            left = keep[row, placed.columns]
            is_text[row, columns[left]] = False
            # What was encoded is of no use any more, and what was cut may be asked for long after the prefill.
            light = replace(placed, image=EncodedImage(placed.layout))
            groups[-1].append(RemainingImage(light, row, columns, left, next(selections).indices.cpu()))
    return [_group(images, is_prompt[images[0].row], is_text[images[0].row], method, depth) for images in groups]


def _group(
    images: list[RemainingImage], is_prompt: Tensor, is_text: Tensor, method: InsideMethod, depth: int
) -> RemainingTokens:
    """is_prompt: P₀, true for tokens that are not padding; is_text: for those that are in no image either."""
    tokens = torch.cat([image.token_columns for image in images])
    text = is_text.nonzero().flatten()
    after_images = text[text > int(tokens.max())]
    cuts = {cut.layer: cut for cut in method.cuts(len(tokens), depth)}
    last = int(is_prompt.nonzero().max())
    return RemainingTokens(images, cuts, tokens, after_images if len(after_images) else text, last)
