"""What is known of a vision tower before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tower:
    """A vision tower of `depth` layers, of which the model runs the first `read`."""

    family: str
    heads: int
    depth: int
    read: int
    has_cls: bool = False

    @classmethod
    def of(cls, config: Any) -> Tower | None:
        """From a model's configuration; None for towers of unknown kinds."""
        vision: Any = getattr(config, "vision_config", None)
        kind = getattr(vision, "model_type", None)
        if kind in ("clip_vision_model", "siglip_vision_model"):
            depth, layers = vision.num_hidden_layers, config.vision_feature_layer
            # Counted as hidden states are: the first of depth + 1 is what goes into the first layer.
            read = max(layer % (depth + 1) for layer in ([layers] if isinstance(layers, int) else layers))
            return cls(config.model_type, vision.num_attention_heads, depth, read, has_cls=kind == "clip_vision_model")
        if hasattr(vision, "spatial_merge_size"):
            return cls(config.model_type, vision.num_heads, vision.depth, vision.depth)
        return None
