"""Pruning inside the language model: its layers pass on fewer tokens than they got.

A prefill is cut at the input of some layers: hidden states, position embeddings and masks, and so what the layers from
there on write to the KV cache. Later calls on that cache find layers of different lengths, so each gets its own mask,
and its own positions where tokens are renumbered. Layer 0 always sees everything that enters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from eadp.compat import PROCESS_DEEPSTACK
from eadp.methods.base import Newlines, Positions
from eadp.methods.inside import InsideMethod, scale_layers
from eadp.models.adapter import FamilyAdapter
from eadp.runtime.cache_map import CacheMap
from eadp.runtime.choose import Choice, Chooser
from eadp.runtime.compact import Compaction
from eadp.runtime.decoder import Decoder
from eadp.runtime.forward_passes import ContinuationPass, PrefillPass
from eadp.runtime.hooks import Hooks
from eadp.runtime.masks import Mask
from eadp.runtime.merge import shorten_deepstack
from eadp.runtime.prefill_inputs import PrefillInputs
from eadp.runtime.probe import AttentionInputs, AttentionProbe
from eadp.runtime.remaining_tokens import RemainingImage, RemainingTokens
from eadp.runtime.vision_capture import PrefillContext

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class InsideLanguageModel:
    """Cuts the visual tokens between the layers of a language model, while its hooks are in place."""

    def __init__(
        self,
        model: nn.Module,
        adapter: FamilyAdapter,
        method: InsideMethod,
        chooser: Chooser,
        positions: Positions | None = None,
        newlines: Newlines | None = None,
    ) -> None:
        """Set up the pruning.

        Args:
            model: The model that the user calls.
            adapter: Its adapter.
            method: The method that cuts.
            chooser: What selects before the language model; it says which images share a budget.
            positions: What kept tokens do with their positions. None: as in the method's release.
            newlines: Which newlines stay. None: as in the method's release.
        """
        self.model = model
        self.adapter = adapter
        self.method = method
        self.chooser = chooser
        self.positions = positions or method.positions_for(adapter.config.model_type)
        self.newlines: Newlines = newlines or method.newlines
        self.text = cast(Any, adapter.text_model)
        self.decoder = Decoder(self.text)
        self.layers: list[nn.Module] = list(self.text.layers)[: self.text.config.num_hidden_layers]
        self._pass: PrefillPass | ContinuationPass | None = None
        self._drafts = 0

    @property
    def depth(self) -> int:
        """The number of layers of the language model."""
        return len(self.layers)

    def install(self, hooks: Hooks) -> None:
        """Hook into the model."""
        hooks.before(self.model, self._count_drafts)
        hooks.before(self.text.rotary_emb, self._read_positions)
        for index, layer in enumerate(self.layers):
            hooks.before(layer, partial(self._enter_layer, index))
        if self.method.attention_from == "previous":
            for index in {*scale_layers(self.method.layers, self.depth)}:
                attention = self.layers[index - 1].get_submodule("self_attn")
                AttentionProbe(attention, self._read_attention, partial(self._cuts_at, index)).install(hooks)
        if (add := getattr(self.text, PROCESS_DEEPSTACK, None)) is not None:
            hooks.override(self.text, PROCESS_DEEPSTACK, self._wrap_deepstack(add))

    # Called around the language model as a whole.

    def begin(self, inputs: PrefillInputs, context: PrefillContext, choice: Choice, plan: Compaction | None) -> None:
        """Begin a prefill.

        Args:
            inputs: What enters the first layer.
            context: The images of the prompts.
            choice: What a method before the language model kept.
            plan: What that did to the columns; None where it dropped nothing.
        """
        if self.text.training and getattr(self.text, "gradient_checkpointing", False):
            raise ValueError(
                f"{self.method.name} cannot cut layers that run a second time for their gradients; "
                "turn gradient checkpointing off, or prune before the language model"
            )
        self._pass = PrefillPass(
            inputs,
            self._remaining_tokens(inputs, context, choice, plan),
            context.beams,
            self.method,
            self.positions,
            self.newlines,
            self.decoder,
            self.adapter.builds_masks,
        )

    def resume(self, mask: Mask, cache_map: CacheMap) -> None:
        """Begin a call without images that continues from a cache. mask: over the whole logical sequence."""
        self._pass = ContinuationPass(self.decoder, mask, cache_map) if cache_map.deeper else None

    def end(self) -> PrefillPass | None:
        """End the call. Returns the prefill if it was one."""
        ended, self._pass, self._drafts = self._pass, None, 0
        return ended if isinstance(ended, PrefillPass) else None

    def _remaining_tokens(
        self, inputs: PrefillInputs, context: PrefillContext, choice: Choice, plan: Compaction | None
    ) -> list[RemainingTokens]:
        fill = None if plan is None else plan.fill.cpu()
        is_prompt = torch.ones(inputs.embeddings.shape[:2], dtype=torch.bool)
        if inputs.valid is not None:
            is_prompt &= inputs.valid.cpu()
        if self._drafts:
            is_prompt[:, -self._drafts :] = False
        is_text, groups, selections = is_prompt.clone(), [], iter(choice.selections)
        for group in self.chooser.group_by_budget(context.images):
            groups.append(list[RemainingImage]())
            for placed in group:
                row = placed.row * context.beams
                columns = placed.columns if fill is None else fill[row, placed.columns]
                left = choice.keep[row, placed.columns]
                is_text[row, columns[left]] = False
                groups[-1].append(RemainingImage(placed, row, columns, left, next(selections).indices.cpu()))
        return [self._group(images, is_prompt[images[0].row], is_text[images[0].row]) for images in groups]

    def _group(self, images: list[RemainingImage], is_prompt: Tensor, is_text: Tensor) -> RemainingTokens:
        """is_prompt: P₀, true for tokens that are not padding; is_text: for those that are in no image either."""
        tokens = torch.cat([image.token_columns for image in images])
        text = is_text.nonzero().flatten()
        after_images = text[text > int(tokens.max())]
        cuts = {cut.layer: cut for cut in self.method.cuts(len(tokens), self.depth)}
        last = int(is_prompt.nonzero().max())
        return RemainingTokens(images, cuts, tokens, after_images if len(after_images) else text, last)

    def _count_drafts(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # In assisted decoding the first drafts follow the prompt in the prefill itself, but are not part of it. The
        # number of logits shows them: those of the prompt's last token and of each draft are asked for.
        logits, cache = kwargs.get("logits_to_keep"), kwargs.get("past_key_values")
        self._drafts = logits - 1 if isinstance(logits, int) and logits > 1 and cache is not None else 0

    def _read_positions(self, rotary: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the positions of the first layer; deeper layers may have others."""
        if self._pass is not None:
            self._pass.position_ids = kwargs["position_ids"] if "position_ids" in kwargs else args[1]

    # The layers.

    def _enter_layer(
        self, index: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        if self._pass is None:
            return None
        states, *others = args
        states, kwargs = self._pass.enter_layer(index, layer, states, kwargs)
        return (states, *others), kwargs

    def _cuts_at(self, index: int) -> bool:
        return isinstance(self._pass, PrefillPass) and self._pass.cuts_at(index)

    def _read_attention(self, inputs: AttentionInputs) -> None:
        if isinstance(self._pass, PrefillPass):
            self._pass.attention_inputs = inputs

    def _wrap_deepstack(self, add: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Shorten and merge what a model adds to its visual tokens after its first layers, as the tokens were."""

        def add_shortened(states: Tensor, is_visual: Tensor, rows: Tensor) -> Tensor:
            for cut in self._pass.cuts if isinstance(self._pass, PrefillPass) else ():
                is_visual, (rows,) = shorten_deepstack(is_visual, [rows], cut.merges, cut.plan)
            return add(states, is_visual, rows)

        return add_shortened
