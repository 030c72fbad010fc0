"""The description of a vision tower, from the configuration of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TowerSpec:
    """The shape of a vision tower.

    Attributes:
        family: The `model_type` of the whole model.
        heads: The number of attention heads per layer.
        depth: The number of layers.
        layers_run: How many of the first layers the model runs.
        has_cls: Whether the tower has a CLS token.
    """

    family: str
    heads: int
    depth: int
    layers_run: int
    has_cls: bool = False

    @classmethod
    def from_config(cls, config: Any) -> TowerSpec | None:
        """Read the tower from a model's configuration. Returns None for an unknown kind of tower."""
        vision: Any = getattr(config, "vision_config", None)
        kind = getattr(vision, "model_type", None)
        if kind in ("clip_vision_model", "siglip_vision_model"):
            depth, layers = vision.num_hidden_layers, config.vision_feature_layer
            # vision_feature_layer counts the depth + 1 hidden states: number 0 is the input of the first layer.
            layers_run = max(layer % (depth + 1) for layer in ([layers] if isinstance(layers, int) else layers))
            return cls(
                config.model_type, vision.num_attention_heads, depth, layers_run, has_cls=kind == "clip_vision_model"
            )
        if hasattr(vision, "spatial_merge_size"):
            return cls(config.model_type, vision.num_heads, vision.depth, vision.depth)
        return None
