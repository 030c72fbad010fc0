"""Shared code of Qwen's families: one grid per image, M-RoPE, guided by the input embeddings, images only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from eadp.models.layout import Placeholders
from eadp.models.overrides import Overrides
from eadp.models.qwen import Qwen2_5_VLGeometry
from eadp.models.vision_call import EncodedImage, VisionCall
from eadp.runtime.vision import token_attention
from eadp.serve import mrope
from eadp.serve.attention import record_attention
from eadp.serve.features import EncodedFeatures
from eadp.serve.processing import REQUEST_FIELD, PruningProcessor
from eadp.serve.pruning import Item, PruningModel
from eadp.serve.request import Request
from eadp.serve.vision import ServedVision
from eadp.serve.vllm_base import VllmBase


class ImagesOnlyInfo(VllmBase):
    """Mixin for vLLM's processing info that allows images only. vLLM's own architecture prunes clips in its own way."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": None, "video": 0}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {"image": self.get_max_image_tokens()}


class QwenPruningProcessor(PruningProcessor):
    """Mixin for the vLLM processor of a Qwen model."""

    positions = ("renumber", "keep")
    # The guide averages the embeddings of the question's tokens, so there must be at least one.
    accepts_empty_question = False


class QwenPruningModel(PruningModel):
    """Mixin for a vLLM model of Qwen.

    The rows for the engine carry the coordinates of their tokens in extra channels. `recompute_mrope_positions` reads
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
        grids = torch.as_tensor(batch["image_grid_thw"]).cpu().view(-1, 3)
        parts = batch["pixel_values"].split(grids.prod(1).tolist())
        return [{"pixel_values": part, "image_grid_thw": grid[None]} for part, grid in zip(parts, grids, strict=True)]

    def count_tower_tokens(self, item: Item) -> int:
        return int(item["image_grid_thw"].prod()) // self.config.vision_config.spatial_merge_size**2

    def encode_items(
        self, items: Sequence[Item], layers: Sequence[int], outputs: Sequence[str]
    ) -> list[EncodedFeatures]:
        batch = {name: torch.cat([item[name] for item in items]) for name in items[0]}
        functions = [block.attn.attn for block in self.visual.blocks]
        with record_attention(functions, layers, self.eadp_settings.tower) as attention, Overrides() as overrides:
            patches = _record_merger_inputs(self.visual.merger, overrides) if outputs else []
            rows = self._process_image_input(self._parse_and_validate_image_input(**batch))
        lengths = [len(each) for each in rows]
        call = VisionCall("image", {"image_grid_thw": batch["image_grid_thw"]}, (), lengths, attention)
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
                EncodedImage(layout, None, each_attention, each_before, tower_features=each_features), each, self.width
            )
            for layout, each_attention, each_before, each_features, each in zip(
                layouts, token_attention(geometry, call, layouts), before_merger, features, rows, strict=True
            )
        ]

    def prepare_for_engine(self, encoded: EncodedFeatures, slots: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([rows, mrope.encode_coordinates(slots, encoded.image.layout.grids[0]).to(rows)], dim=1)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Any) -> tuple[Tensor, int]:
        merge = self.config.vision_config.spatial_merge_size
        spans = []
        for feature in mm_features:
            _, rows, columns = feature.data["image_grid_thw"].data.tolist()
            span = feature.mm_position
            spans.append(mrope.ImageSpan(span.offset, span.length, (rows // merge, columns // merge)))
        requests = [Request.from_tensor(feature.data[REQUEST_FIELD["image"]].data) for feature in mm_features]
        renumber = any(request.positions == "renumber" for request in requests)
        return mrope.compute_prompt_positions(len(input_tokens), spans, renumber)

    def recompute_mrope_positions(
        self, input_ids: Any, multimodal_embeddings: Any, mrope_positions: Tensor, num_computed_tokens: int
    ) -> tuple[list[Tensor], Tensor, int]:
        if multimodal_embeddings:
            channels = torch.cat([each[:, -mrope.COORDINATE_CHANNELS :] for each in multimodal_embeddings])
            coordinates = mrope.decode_coordinates(channels).to(mrope_positions.device)
            is_image = torch.as_tensor(input_ids, device=mrope_positions.device) == self.config.image_token_id
            mrope_positions = mrope.fill_in_coordinates(mrope_positions, is_image, num_computed_tokens, coordinates)
        # A prompt ends with text, so its last token has the largest position.
        delta = int(mrope_positions.max()) + 1 - mrope_positions.shape[1]
        return [each[:, : -mrope.COORDINATE_CHANNELS] for each in multimodal_embeddings], mrope_positions, delta


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
