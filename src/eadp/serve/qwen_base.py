"""Shared code of Qwen's families: one grid per image or frame, M-RoPE, guided by the input embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from eadp.models.layout import Placeholders
from eadp.models.overrides import Overrides
from eadp.models.qwen import Qwen2_5_VLGeometry
from eadp.models.vision_call import EncodedImage, VisionCall
from eadp.runtime.vision import token_attention
from eadp.serve.attention import record_attention
from eadp.serve.features import EncodedFeatures
from eadp.serve.mrope import POSITION_CHANNELS, PromptSpan, SpanLayout, compute_prompt_positions, fill_in_positions
from eadp.serve.processing import REQUEST_FIELD, Media, PruningProcessor
from eadp.serve.pruning import Item, PruningModel
from eadp.serve.request import Request
from eadp.serve.vision import ServedVision
from eadp.serve.vllm_base import VllmBase

PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}
GRID = {"image": "image_grid_thw", "video": "video_grid_thw"}
TIMES = ("second_per_grid_ts", "timestamps")
"""The fields with the times of a clip's frames: the first on Qwen2.5-VL, the second on Qwen3-VL."""


class QwenSpans(VllmBase):
    """Mixin for the processor and the model of a family: both must agree on the rows of a clip."""

    @abstractmethod
    def clip_span(self, data: Mapping[str, Any], frames: int, rows: int, columns: int) -> SpanLayout:
        """Return the rows of an unpruned clip.

        Args:
            data: The fields of the clip, with its times.
            frames: The number of its frames; a frame is what the tower encodes as one.
            rows: Rows of tokens of a frame.
            columns: Columns of tokens of a frame.
        """

    def span(self, modality: str, data: Mapping[str, Any], merge: int) -> SpanLayout:
        """Return the rows of an unpruned image or clip.

        Args:
            modality: "image" or "video".
            data: Its fields.
            merge: Patches along each side of a token.
        """
        frames, rows, columns = torch.as_tensor(data[GRID[modality]]).flatten().tolist()
        size = (rows // merge, columns // merge)
        return SpanLayout.from_grid([0], *size) if modality == "image" else self.clip_span(data, frames, *size)


class QwenPruningProcessor(QwenSpans, PruningProcessor):
    """Mixin for the vLLM processor of a Qwen model."""

    positions = ("renumber", "keep")
    modalities = ("image", "video")

    def _shorten(self, update: Any, request: Request, media: Media) -> Any:
        if media.modality == "image":
            return super()._shorten(update, request, media)
        # vLLM's own update drops tokens at the rate that `engine_config` sets, so it is made anew, also if all stay.
        config = self.info.get_hf_config()
        data = {name: field.data for name, field in media.fields.items()}
        span = self.span("video", data, config.vision_config.spatial_merge_size)
        kept = request.count_sent(int(span.is_visual.sum()), has_layout=False)
        token_ids = span.keep(torch.arange(kept)).gather_visual(config.video_token_id)
        return replace(update, content=replace(update.content, full=token_ids.tolist(), is_embed=None))


class QwenPruningModel(QwenSpans, PruningModel):
    """Mixin for a vLLM model of Qwen.

    The rows for the engine carry the positions of their tokens in extra channels. `recompute_mrope_positions` reads
    and removes them.

    Attributes:
        geometry_class: The geometry of the family in `eadp.models`.
    """

    geometry_class: ClassVar[type[Qwen2_5_VLGeometry]]

    @property
    def geometry(self) -> Qwen2_5_VLGeometry:
        return self.geometry_class(self.config)

    @property
    def vision(self) -> ServedVision:
        geometry = self.geometry
        return ServedVision(geometry, lambda rows: self.visual.merger(geometry.merger_input(rows)))

    @property
    def width(self) -> int:
        """d, the channels of a feature at the input of the language model."""
        return self.config.vision_config.out_hidden_size

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        loaded = super().load_weights(weights)
        if self.eadp_settings.guide not in (None, "none"):
            raise ValueError('this model is guided by its own input embeddings: remove the setting "guide"')
        self.eadp_word_guide = self.build_word_guide()
        if self.eadp_settings.has_guide:
            self.eadp_guide = self.eadp_word_guide
        return loaded

    def split_batch(self, batch: dict[str, Any]) -> list[Item]:
        modality = _modality_of(batch)
        grids = torch.as_tensor(batch[GRID[modality]]).cpu().view(-1, 3)
        parts = batch[PIXELS[modality]].split(grids.prod(1).tolist())
        times = {name: batch[name] for name in TIMES if batch.get(name) is not None}
        return [
            {PIXELS[modality]: part, GRID[modality]: grid[None], **{name: each[index] for name, each in times.items()}}
            for index, (part, grid) in enumerate(zip(parts, grids, strict=True))
        ]

    def count_tower_tokens(self, item: Item) -> int:
        return int(item[GRID[_modality_of(item)]].prod()) // self.config.vision_config.spatial_merge_size**2

    def encode_items(
        self, items: Sequence[Item], layers: Sequence[int], outputs: Sequence[str]
    ) -> list[EncodedFeatures]:
        modality, merge = _modality_of(items[0]), self.config.vision_config.spatial_merge_size
        batch = {name: torch.cat([item[name] for item in items]) for name in (PIXELS[modality], GRID[modality])}
        functions = [block.attn.attn for block in self.visual.blocks]
        with record_attention(functions, layers, self.eadp_settings.tower) as attention, Overrides() as overrides:
            patches = _record_merger_inputs(self.visual.merger, overrides) if outputs else []
            rows = self._run_vision(modality, batch)
        lengths = [len(each) for each in rows]
        call = VisionCall(modality, {GRID[modality]: batch[GRID[modality]]}, (), lengths, attention)
        geometry = self.geometry
        layouts = geometry.layouts(call, Placeholders(None, []))
        before_merger: Sequence[Any] = [None] * len(layouts)
        features: Sequence[Tensor | None] = [None] * len(layouts)
        if patches:
            states = patches[0].view(-1, self.config.vision_config.hidden_size)
            if "tower_rows" in outputs:
                before_merger = geometry.tower_rows(call, layouts, states)
            if "tower_features" in outputs:
                features = geometry.tokens_from_cells(call, layouts, states[None])
        return [
            EncodedFeatures(
                EncodedImage(layout, None, each_attention, each_before, tower_features=each_features),
                each,
                self.width,
                self.span(modality, item, merge),
            )
            for item, layout, each_attention, each_before, each_features, each in zip(
                items, layouts, token_attention(geometry, call, layouts), before_merger, features, rows, strict=True
            )
        ]

    def _run_vision(self, modality: str, batch: dict[str, Any]) -> Sequence[Tensor]:
        if modality == "image":
            return self._process_image_input(self._parse_and_validate_image_input(**batch))
        return self._process_video_input(self._parse_and_validate_video_input(**batch))

    def prepare_for_engine(self, encoded: EncodedFeatures, slots: Tensor, rows: Tensor) -> Tensor:
        assert encoded.span is not None  # `encode_items` sets it.
        span = encoded.span.keep(slots)
        is_text = ~span.is_visual
        if is_text.any():
            visual, rows = rows, rows.new_zeros(len(span), rows.shape[1])
            rows[span.is_visual.to(rows.device)] = visual
            # The text of a clip has no DeepStack channels, which come after the first d.
            token_ids = span.token_ids[is_text].to(rows.device)
            rows[is_text.to(rows.device), : self.width] = self.language_model.embed_input_ids(token_ids).to(rows)
        return torch.cat([rows, span.to_channels().to(rows)], dim=1)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Any) -> tuple[Tensor, int]:
        merge = self.config.vision_config.spatial_merge_size
        spans, renumber = [], False
        for feature in mm_features:
            data = {name: field.data for name, field in feature.data.items()}
            place = feature.mm_position
            spans.append(PromptSpan(place.offset, place.length, self.span(feature.modality, data, merge)))
            renumber |= Request.from_tensor(data[REQUEST_FIELD[feature.modality]]).positions == "renumber"
        return compute_prompt_positions(len(input_tokens), spans, renumber)

    def recompute_mrope_positions(
        self, input_ids: Any, multimodal_embeddings: Any, mrope_positions: Tensor, num_computed_tokens: int
    ) -> tuple[list[Tensor], Tensor, int]:
        if multimodal_embeddings:
            token_ids = torch.as_tensor(input_ids, device=mrope_positions.device)
            is_placeholder = (token_ids == self.config.image_token_id) | (token_ids == self.config.video_token_id)
            channels = [each[:, -POSITION_CHANNELS:] for each in multimodal_embeddings]
            mrope_positions = fill_in_positions(mrope_positions, is_placeholder, num_computed_tokens, channels)
        # The answer continues the text that the prompt ends with. The times of a long clip before it may be larger.
        delta = int(mrope_positions[0, -1]) + 1 - mrope_positions.shape[1]
        return [each[:, :-POSITION_CHANNELS] for each in multimodal_embeddings], mrope_positions, delta


def _modality_of(fields: Mapping[str, Any]) -> str:
    return "image" if PIXELS["image"] in fields else "video"


def _record_merger_inputs(merger: Any, overrides: Overrides) -> list[Tensor]:
    """Return a list that gets a copy of the merger's input at each call, while `overrides` is active.

    A hook would not do: vLLM calls the `forward` of modules that it may compile directly. The input is copied, because
    norms may change it in place.
    """
    inputs: list[Tensor] = []
    original = merger.forward

    def forward(patches: Tensor, *args: Any, **kwargs: Any) -> Any:
        inputs.append(patches.clone())
        return original(patches, *args, **kwargs)

    overrides.override(merger, "forward", forward)
    return inputs
