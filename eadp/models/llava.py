"""LLaVA-1.5 (and Pixtral in LLaVA's clothes): one grid of tokens an image."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eadp.models.family import Family, Picture, Prompt, Seen, square


def tower_states(config: Any, seen: Seen, output: Any) -> Tensor:
    """crops×cells×d: what a guide aligns.

    CLIP towers: the layer that the model reads, without CLS. Towers without CLS (SigLIP): their output, because their
    contrastive head sits on that.
    """
    strategy = seen.arguments.get("vision_feature_select_strategy") or config.vision_feature_select_strategy
    if strategy != "default":
        return output.last_hidden_state
    layer = seen.arguments.get("vision_feature_layer")
    layer = config.vision_feature_layer if layer is None else layer
    hidden = output.hidden_states[layer if isinstance(layer, int) else layer[-1]]
    return hidden[:, 1:]


class Llava(Family):
    types = ("llava",)

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        if seen.arguments.get("image_sizes") is None:
            states = tower_states(self.config, seen, output)
            grids = [square(length, "the image") for length in seen.lengths]
            return [
                Picture.plain([grid], states=rows[None], arrange=lambda aligned: aligned[0])
                for grid, rows in zip(grids, states, strict=True)
            ]
        patch = self.base.vision_tower.patch_size
        return [Picture.plain([(height // patch, width // patch)]) for height, width in seen.listed("image_sizes")]
