"""The side that takes requests: reads the question, makes it part of the images' hashes, shortens the prompt.

vLLM keys its processor, encoder and prefix caches by one hash of each image or clip and of `hf_processor_mm_kwargs`.
The request is put in there before anything is hashed, so that another question or budget is another item, and the same
one a hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.parse import EmbeddingItems

from eadp.methods import NoPruning
from eadp.methods.base import Positions
from eadp.models.question import question_of
from eadp.serve.request import KEY, Request, ServerSettings
from eadp.serve.stock import Stock

REQUEST = {"image": "eadp_image_request", "video": "eadp_video_request"}
"""The field of each modality that carries the request to the workers, with each image or clip."""
MEDIA_KEY = {"image": "eadp_image_key", "video": "eadp_video_key"}
"""The field of each modality that carries the key of the image or clip itself, whatever is asked about it."""


class PruningProcessor(Stock):
    """Before a stock multimodal processor."""

    positions: ClassVar[tuple[Positions, ...]]
    """What kept tokens of this family can have: "keep" their own, "renumber"."""
    modalities: ClassVar[tuple[str, ...]] = ("image",)
    """What is pruned: "image", "video"."""
    takes_silence: ClassVar[bool] = True
    """The family's guide has a vector also for an empty question."""

    def __init__(self, info: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(info, *args, **kwargs)
        mm_config = info.ctx.get_mm_config()
        self._server = ServerSettings.of(info.get_hf_config(), self.positions, shows_attention(mm_config))
        if KEY in (mm_config.mm_processor_kwargs or {}):
            raise ValueError(f"settings for the whole server belong into --hf-overrides '{{\"{KEY}\": {{…}}}}'")

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        own = dict(inputs.hf_processor_mm_kwargs)
        request = self._server.request(own.pop(KEY, None))
        media = sum(inputs.mm_data_items.get_count(modality, strict=False) for modality in self.modalities)
        if request.prunes and media:
            own[KEY] = self._asked(request, inputs.prompt).to_json()
        return super().apply(replace(inputs, hf_processor_mm_kwargs=own), timing_ctx)

    def _asked(self, request: Request, prompt: Sequence[int]) -> Request:
        """The request with its question. Methods that read none get none, so that all questions share their hits."""
        if not request.reads:
            return replace(request, question="")
        question = request.question or question_of(
            torch.tensor(prompt), self.info.get_tokenizer(), self.info.get_hf_config()
        )
        if not question and not self.takes_silence:
            raise ValueError(
                f"the last user turn has no text, and {request.method.name} prunes by the question: ask something, "
                f'give mm_processor_kwargs={{"{KEY}": {{"question": "…"}}}}, or a method that reads none'
            )
        return replace(request, question=question)

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """The most that an image can take is all its tokens: a request may ask for that."""
        inputs = super().get_dummy_inputs(*args, **kwargs)
        return replace(inputs, hf_processor_mm_kwargs={KEY: {"method": NoPruning.name}})

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        request, own = _parted(hf_kwargs)
        data = super()._apply_hf_processor_main(mm_items, own)
        algorithm = self.info.ctx.get_mm_config().mm_hasher_algorithm
        for modality in self.modalities:
            items = mm_items.get(modality)
            if not items:
                continue
            if isinstance(items, EmbeddingItems):
                raise ValueError(f"{modality} features cannot be pruned here: send the {modality} itself")
            keys = [
                MultiModalHasher.hash_kwargs(algorithm, **{modality: item}, mm_processor_kwargs=own)
                for item in items.get_all_items_for_hash()
            ]
            data[REQUEST[modality]] = [request.to_tensor()] * len(keys)
            data[MEDIA_KEY[modality]] = [torch.frombuffer(bytearray.fromhex(key), dtype=torch.uint8) for key in keys]
        return data

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> dict[str, Any]:
        ours = {
            fields[modality]: MultiModalFieldConfig.batched(modality, keep_on_cpu=True)
            for fields in (REQUEST, MEDIA_KEY)
            for modality in self.modalities
        }
        return {**super()._get_mm_fields_config(hf_inputs, _parted(hf_processor_mm_kwargs)[1]), **ours}

    def _get_mm_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, object], out_mm_kwargs: Any
    ) -> Any:
        request, own = _parted(hf_processor_mm_kwargs)
        updates = super()._get_mm_prompt_updates(mm_items, own, out_mm_kwargs)
        if not request.prunes:
            return updates
        shortened = {
            modality: [
                [
                    self._shortened(update, request, modality, self._newlines(mm_items, modality, index))
                    for update in item
                ]
                for index, item in enumerate(updates[modality])
            ]
            for modality in self.modalities
            if modality in updates
        }
        return {**updates, **shortened}

    def _shortened(self, update: Any, request: Request, modality: str, newlines: int) -> Any:
        """vLLM's own update, with as many placeholders as tokens are sent. All of its ids are placeholders."""
        slots = update.content.full
        kept = request.sent(len(slots) - newlines, newlines, has_layout=modality == "image")
        return replace(update, content=replace(update.content, full=slots[:kept]))

    def _newlines(self, mm_items: Any, modality: str, index: int) -> int:
        """How many placeholders of an image or clip are for newlines."""
        return 0


def shows_attention(mm_config: Any) -> bool:
    """Not where ranks share the images out, so that each sees only some."""
    return mm_config.mm_encoder_tp_mode != "data"


def _parted(kwargs: Mapping[str, object]) -> tuple[Request, dict[str, object]]:
    """Our request, as `apply` wrote it, and what is the stock processor's."""
    own = dict(kwargs)
    request = own.pop(KEY, None)
    return Request(NoPruning()) if request is None else Request.from_json(str(request)), own
