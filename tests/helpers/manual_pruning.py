"""Pruning without hooks: the prompt and the features are shortened before a plain `generate`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from helpers.tiny_processors import IDS, SPECIAL

SPECIAL_IDS = [IDS[token] for token in SPECIAL]
MODALITIES = ("image", "video")


def shortened(model: Any, inputs: dict[str, Tensor], keep: Tensor, positions: str) -> dict[str, Any]:
    """Return arguments for `generate` with only the kept columns of a single prompt. `keep` is a 1×L mask."""
    base, ids = model.base_model, inputs["input_ids"]
    arguments = {
        name: value[:, keep[0]]
        for name, value in inputs.items()
        if name in ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
    }
    outputs = {}
    for modality in MODALITIES:
        here = keep[ids == getattr(model.config, f"{modality}_token_id", -1)]
        pixels = {"image": "pixel_values", "video": "pixel_values_videos"}[modality]
        if pixels not in inputs:
            continue
        names = ("image_sizes", "batch_num_images") if modality == "image" else ()
        names += (f"{modality}_grid_thw",)
        tower_arguments = {name: inputs[name] for name in names if name in inputs}
        output = getattr(base, f"get_{modality}_features")(inputs[pixels], **tower_arguments, return_dict=True)
        output.pooler_output = _rows(output.pooler_output, here)
        if getattr(output, "deepstack_features", None) is not None:
            output.deepstack_features = [_rows(layer, here) for layer in output.deepstack_features]
        outputs[modality] = output
    return {**arguments, "mm_encoder_outputs": outputs, "position_ids": _positions(model, inputs, keep, positions)}


def _rows(features: Any, here: Tensor) -> Any:
    """Return the kept rows in the container that the model expects."""
    if isinstance(features, Tensor):
        return features.flatten(0, 1)[here][None]
    return [torch.cat([rows.flatten(0, -2) for rows in features])[here]]


def _positions(model: Any, inputs: dict[str, Tensor], keep: Tensor, positions: str) -> Tensor:
    count = torch.arange(int(keep.sum()))[None]
    ids = torch.arange(keep.shape[1])[None]
    if not hasattr(model.base_model, "get_rope_index"):
        return count if positions == "renumber" else ids[keep][None]
    if positions == "renumber":
        return count.expand(4, 1, -1)
    grids = {name: inputs[name] for name in ("image_grid_thw", "video_grid_thw") if name in inputs}
    coordinates, _ = model.base_model.get_rope_index(
        inputs["input_ids"], mm_token_type_ids=inputs["mm_token_type_ids"], **grids
    )
    return torch.cat([count[None], coordinates[..., keep[0]]])


def answers(model: Any, **arguments: Any) -> tuple[Tensor, Tensor]:
    """Generate greedily: B×T new tokens and B×T×vocabulary logits. Special tokens are suppressed.

    A generated image placeholder would require an image.
    """
    settings = {"max_new_tokens": 6, "do_sample": False, "suppress_tokens": SPECIAL_IDS}
    out = model.generate(**settings | arguments, return_dict_in_generate=True, output_logits=True)
    return out.sequences[:, arguments["input_ids"].shape[1] :], torch.stack(out.logits, dim=1)
