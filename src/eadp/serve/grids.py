"""What Qwen's families share: one grid an image, M-RoPE, a guide from the input embeddings, images only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.tokenizers import cached_tokenizer_from_config

from eadp.models.guides import EmbeddingGuide
from eadp.models.layout import Placeholders
from eadp.models.overrides import Overrides
from eadp.models.qwen import Qwen2_5_VLGeometry
from eadp.models.vision_call import EncodedImage, VisionCall
from eadp.runtime.vision import token_attention
from eadp.serve import mrope
from eadp.serve.attention import watching
from eadp.serve.features import Look
from eadp.serve.processing import REQUEST, PruningProcessor
from eadp.serve.pruning import Item, PruningModel
from eadp.serve.request import Request
from eadp.serve.stock import Stock
from eadp.serve.vision import ServedVision


class ImagesOnly(Stock):
    """Before a stock processing info: clips are for the stock architecture, which prunes them in its own way."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": None, "video": 0}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {"image": self.get_max_image_tokens()}


class GridProcessor(PruningProcessor):
    positions = ("renumber", "keep")
    # An empty text has no embeddings to take the mean of.
    takes_silence = False


class GridModel(PruningModel):
    """Features are followed by channels that carry each token's coordinates, until the engine asks for positions."""

    geometry_class: ClassVar[type[Qwen2_5_VLGeometry]]
    """The geometry of the family in `eadp.models`."""

    @property
    def geometry(self) -> Qwen2_5_VLGeometry:
        return self.geometry_class(self.config)

    @property
    def vision(self) -> ServedVision:
        geometry = self.geometry
        return ServedVision(geometry, lambda rows: self.visual.merger(geometry.merger_input(rows)))

    @property
    def width(self) -> int:
        """Channels of a feature that the language model takes at its input."""
        return self.config.vision_config.out_hidden_size

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        loaded = super().load_weights(weights)
        if self.eadp_settings.guide not in (None, "none"):
            raise ValueError('this model is guided by its own input embeddings: leave "guide" out')
        if self.eadp_settings.reads:
            tokenizer = cached_tokenizer_from_config(self.eadp_place)
            self.eadp_guide = EmbeddingGuide(self.language_model.model.embed_tokens, tokenizer)
        return loaded

    def items(self, batch: dict[str, Any]) -> list[Item]:
        grids = torch.as_tensor(batch["image_grid_thw"]).cpu().view(-1, 3)
        parts = batch["pixel_values"].split(grids.prod(1).tolist())
        return [{"pixel_values": part, "image_grid_thw": grid[None]} for part, grid in zip(parts, grids, strict=True)]

    def tokens_of(self, item: Item) -> int:
        return int(item["image_grid_thw"].prod()) // self.config.vision_config.spatial_merge_size**2

    def look(self, items: Sequence[Item], layers: Sequence[int], tower_rows: bool) -> list[Look]:
        together = {name: torch.cat([item[name] for item in items]) for name in items[0]}
        functions = [block.attn.attn for block in self.visual.blocks]
        with watching(functions, layers, self.eadp_settings.tower) as attention, Overrides() as overrides:
            patches = _into(self.visual.merger, overrides) if tower_rows else []
            rows = self._process_image_input(self._parse_and_validate_image_input(**together))
        lengths = [len(each) for each in rows]
        call = VisionCall("image", {"image_grid_thw": together["image_grid_thw"]}, (), lengths, attention)
        geometry = self.geometry
        layouts = geometry.layouts(call, Placeholders(None, []))
        before_merger: Sequence[Any] = [None] * len(layouts)
        if tower_rows:
            states = patches[0].view(-1, self.config.vision_config.hidden_size)
            before_merger = geometry.tower_rows(call, layouts, states)
        return [
            Look(EncodedImage(layout, None, each_attention, each_before), each, self.width)
            for layout, each_attention, each_before, each in zip(
                layouts, token_attention(geometry, call, layouts), before_merger, rows, strict=True
            )
        ]

    def finished(self, look: Look, slots: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([rows, mrope.to_channels(slots, look.image.layout.grids[0]).to(rows)], dim=1)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Any) -> tuple[Tensor, int]:
        merge = self.config.vision_config.spatial_merge_size
        runs = []
        for feature in mm_features:
            _, rows, columns = feature.data["image_grid_thw"].data.tolist()
            place = feature.mm_position
            runs.append(mrope.Run(place.offset, place.length, (rows // merge, columns // merge)))
        asked = [Request.from_tensor(feature.data[REQUEST["image"]].data) for feature in mm_features]
        renumber = any(request.positions == "renumber" for request in asked)
        return mrope.prompt_positions(len(input_tokens), runs, renumber)

    def recompute_mrope_positions(
        self, input_ids: Any, multimodal_embeddings: Any, mrope_positions: Tensor, num_computed_tokens: int
    ) -> tuple[list[Tensor], Tensor, int]:
        if multimodal_embeddings:
            channels = torch.cat([each[:, -mrope.CHANNELS :] for each in multimodal_embeddings])
            coordinates = mrope.from_channels(channels).to(mrope_positions.device)
            is_image = torch.as_tensor(input_ids, device=mrope_positions.device) == self.config.image_token_id
            mrope_positions = mrope.filled_in(mrope_positions, is_image, num_computed_tokens, coordinates)
        # What a prompt ends with is text, and text stands behind all that is before it.
        ahead = int(mrope_positions.max()) + 1 - mrope_positions.shape[1]
        return [each[:, : -mrope.CHANNELS] for each in multimodal_embeddings], mrope_positions, ahead


def _into(merger: Any, overrides: Overrides) -> list[Tensor]:
    """A list that gets the patches of each call of the merger, as they go into it. vLLM calls the `forward` of modules
    that it may compile by name, past their hooks; and norms may work in place."""
    seen: list[Tensor] = []
    stock = merger.forward

    def forward(patches: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(patches.clone())
        return stock(patches, *args, **kwargs)

    overrides.override(merger, "forward", forward)
    return seen
