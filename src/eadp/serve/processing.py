"""The frontend side of the plugin: read the question, add the request to the images' hashes, shorten the prompt.

The keys of vLLM's processor, encoder and prefix caches are hashes of an image or clip and of `hf_processor_mm_kwargs`.
The plugin adds the request to these arguments before anything is hashed. So the same request is a cache hit, and a
request with another question or budget is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from eadp.methods import NoPruning
from eadp.methods.base import Positions
from eadp.models.question import question_of
from eadp.serve.compat import EmbeddingItems, MultiModalFieldConfig, MultiModalHasher
from eadp.serve.request import SETTINGS_KEY, Request, ServerSettings
from eadp.serve.vllm_base import VllmBase

REQUEST_FIELD = {"image": "eadp_image_request", "video": "eadp_video_request"}
"""Modality → the field that carries the request to the workers, one per image or clip."""
MEDIA_KEY_FIELD = {"image": "eadp_image_key", "video": "eadp_video_key"}
"""Modality → the field that carries the hash of the image or clip alone, without the request."""


PROFILE: Any = object()
"""In place of a request's settings in the inputs of vLLM's profiling run. Clients cannot send it."""


@dataclass(frozen=True)
class Media:
    """An image or clip whose placeholders are counted.

    Attributes:
        modality: "image" or "video".
        newlines: How many of its unpruned placeholders stand for newline tokens.
        fields: The output of vLLM's processor for it, by name.
    """

    modality: str
    newlines: int
    fields: Mapping[str, Any]


class PruningProcessor(VllmBase):
    """Mixin that shortens the prompts of a vLLM processor. List it before vLLM's class among the bases.

    Attributes:
        positions: The supported position modes of kept tokens: "renumber", "keep".
        modalities: The modalities that are pruned: "image", "video".
    """

    positions: ClassVar[tuple[Positions, ...]]
    modalities: ClassVar[tuple[str, ...]] = ("image",)

    def __init__(self, info: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(info, *args, **kwargs)
        mm_config = info.ctx.get_mm_config()
        self._server = ServerSettings.from_config(
            info.get_hf_config(), self.positions, is_attention_available(mm_config)
        )
        if SETTINGS_KEY in (mm_config.mm_processor_kwargs or {}):
            raise ValueError(
                f"put the settings of the whole server into --hf-overrides '{{\"{SETTINGS_KEY}\": {{…}}}}'"
            )

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        own = dict(inputs.hf_processor_mm_kwargs)
        settings = own.pop(SETTINGS_KEY, None)
        self._server.check_processor_kwargs(own)
        media = sum(inputs.mm_data_items.get_count(modality, strict=False) for modality in self.modalities)
        if settings is PROFILE:
            own[SETTINGS_KEY] = Request(NoPruning(), is_profile=True).to_json()
        elif (request := self._server.build_request(settings)).prunes and media:
            self._check_length(inputs.prompt)
            own[SETTINGS_KEY] = self._add_question(request, inputs.prompt).to_json()
        return super().apply(replace(inputs, hf_processor_mm_kwargs=own), timing_ctx)

    def _check_length(self, prompt: Sequence[int]) -> None:
        """Raise ValueError if a prompt is too long for the model, before its question is decoded and read."""
        limit = self.info.ctx.model_config.max_model_len
        if len(prompt) > limit:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens before its images are added, but this model takes at most {limit}"
            )

    def _add_question(self, request: Request, prompt: Sequence[int]) -> Request:
        """Add the question of the prompt to a request that has none of its own.

        Methods that do not read the question get "", so that all questions share one cache entry.
        """
        if not request.reads_question:
            return replace(request, question="")
        tokenizer = self.info.get_tokenizer()
        question = request.question or question_of(torch.tensor(prompt), tokenizer, self.info.get_hf_config())
        self._server.check_question(question, lambda text: len(tokenizer(text).input_ids))
        return replace(request, question=question)

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """Profile memory with all tokens of the largest images, and with a selection from them: see `pruning`."""
        return replace(super().get_dummy_inputs(*args, **kwargs), hf_processor_mm_kwargs={SETTINGS_KEY: PROFILE})

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        request, own = _split_request(hf_kwargs)
        data = super()._apply_hf_processor_main(mm_items, own)
        algorithm = self.info.ctx.get_mm_config().mm_hasher_algorithm
        for modality in self.modalities:
            items = mm_items.get(modality)
            if not items:
                continue
            if isinstance(items, EmbeddingItems):
                raise ValueError(f"{modality} embeddings cannot be pruned: send the {modality} itself")
            keys = [
                MultiModalHasher.hash_kwargs(algorithm, **{modality: item}, mm_processor_kwargs=own)
                for item in items.get_all_items_for_hash()
            ]
            data[REQUEST_FIELD[modality]] = [request.to_tensor()] * len(keys)
            data[MEDIA_KEY_FIELD[modality]] = [
                torch.frombuffer(bytearray.fromhex(key), dtype=torch.uint8) for key in keys
            ]
        return data

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> dict[str, Any]:
        ours = {
            fields[modality]: MultiModalFieldConfig.batched(modality, keep_on_cpu=True)
            for fields in (REQUEST_FIELD, MEDIA_KEY_FIELD)
            for modality in self.modalities
        }
        return {**super()._get_mm_fields_config(hf_inputs, _split_request(hf_processor_mm_kwargs)[1]), **ours}

    def _get_mm_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, object], out_mm_kwargs: Any
    ) -> Any:
        request, own = _split_request(hf_processor_mm_kwargs)
        updates = dict(super()._get_mm_prompt_updates(mm_items, own, out_mm_kwargs))
        for modality in self.modalities:
            if not updates.get(modality):
                continue
            fields = out_mm_kwargs[modality]
            media = [
                Media(modality, self._count_newlines(mm_items, modality, index), fields[index])
                for index in range(len(updates[modality]))
            ]
            updates[modality] = [
                [self._shorten(update, request, each) for update in item]
                for each, item in zip(media, updates[modality], strict=True)
            ]
        return updates

    def _shorten(self, update: Any, request: Request, media: Media) -> Any:
        """Return vLLM's prompt update with one placeholder per kept token. All its token ids are placeholders."""
        slots, newlines = update.content.full, media.newlines
        kept = request.count_sent(len(slots) - newlines, newlines, has_layout=media.modality == "image")
        return replace(update, content=replace(update.content, full=slots[:kept]))

    def _count_newlines(self, mm_items: Any, modality: str, index: int) -> int:
        """Return how many placeholders of an image or clip stand for newline tokens."""
        return 0


def is_attention_available(mm_config: Any) -> bool:
    """Return whether the tower's attention can be recorded: only if every rank encodes every image.

    Args:
        mm_config: vLLM's multimodal configuration.
    """
    return mm_config.mm_encoder_tp_mode != "data"


def _split_request(kwargs: Mapping[str, object]) -> tuple[Request, dict[str, object]]:
    """Split the arguments into the request that `apply` added and those of vLLM's own processor."""
    own = dict(kwargs)
    request = own.pop(SETTINGS_KEY, None)
    return Request(NoPruning()) if request is None else Request.from_json(str(request)), own
