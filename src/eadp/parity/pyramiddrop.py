"""Replay of PyramidDrop: the runtime's own prefill, on Llama layers with the weights that the vectors give."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, LlamaConfig

from eadp.methods.inside import DEPTH
from eadp.methods.pyramiddrop import PyramidDrop
from eadp.models.layout import ImageLayout
from eadp.models.vision_call import EncodedImage
from eadp.parity.sequence import image_positions, text_positions
from eadp.parity.vectors import GoldenVector
from eadp.runtime.cache_map import CacheMap
from eadp.runtime.decoder import Decoder
from eadp.runtime.forward_passes import PrefillPass
from eadp.runtime.hooks import Hooks
from eadp.runtime.prefill_inputs import PrefillInputs
from eadp.runtime.probe import AttentionProbe, Report
from eadp.runtime.remaining_tokens import RemainingImage, RemainingTokens
from eadp.runtime.vision_capture import PlacedImage


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run PyramidDrop on the vector's inputs and return its outputs by name."""
    model, settings = build_language_model(vector), vector.settings
    method = PyramidDrop(layers=tuple(settings["layer_list"]), shares=tuple(settings["ratios"]))
    cuts = method.cuts(settings["N"], DEPTH)
    image, words, states = image_positions(vector), text_positions(vector), vector["states_0"][None]
    placed = PlacedImage(EncodedImage(ImageLayout.contiguous([(1, len(image))])), 0, image)
    left = torch.ones(len(image), dtype=torch.bool)
    remaining = RemainingImage(placed, 0, image, left, torch.arange(len(image)))
    group = RemainingTokens([remaining], {cut.layer: cut for cut in cuts}, image, words, states.shape[1] - 1)
    length = states.shape[1]
    ids = torch.arange(length)[None]
    inputs = PrefillInputs(states, ids, None, None, CacheMap(), 0, None, length, length)
    prefill = PrefillPass(inputs, [group], 1, method, method.positions, method.newlines, Decoder(model), False)
    given = {"attention_mask": None, "position_embeddings": model.rotary_emb(states, ids)}
    outputs: dict[str, Any] = {}
    for number, cut in enumerate(cuts):
        layer = model.layers[number]
        with Hooks() as hooks:
            AttentionProbe(layer.self_attn, partial(_find_report, prefill, cut.layer)).install(hooks)
            prefill.enter_layer(cut.layer, layer, vector[f"states_{number}"][None], given)
        (chosen,) = prefill.cuts[-1].selections
        outputs |= {
            f"scores_{number}": chosen.scores,
            f"kept_local_{number}": chosen.indices,
            f"kept_{number}": remaining.kept,
            f"position_ids_{number}": prefill.positions_at(cut.layer)[0][0],
        }
    return outputs


def _find_report(prefill: PrefillPass, layer: int, queries: int) -> Report | None:
    return prefill.report_at(layer)


def build_language_model(vector: GoldenVector) -> Any:
    """Build a Llama with one layer per cut. Weights that only act after the attention scores stay 0."""
    settings, cuts = vector.settings, len(vector.settings["layer_list"])
    model = AutoModel.from_config(
        LlamaConfig(
            hidden_size=vector["ln_0"].shape[0],
            intermediate_size=1,
            num_hidden_layers=cuts,
            num_attention_heads=settings["heads"],
            num_key_value_heads=settings["heads"],
            head_dim=settings["head_dim"],
            rms_norm_eps=settings["eps"],
            rope_parameters={"rope_type": "default", "rope_theta": settings["rope_base"]},
            vocab_size=8,
        ),
        attn_implementation="sdpa",
    )
    model.requires_grad_(False).eval()
    for number, layer in enumerate(model.layers):
        given: dict[str, Tensor] = {
            "input_layernorm.weight": vector[f"ln_{number}"],
            "self_attn.q_proj.weight": vector[f"q_{number}"],
            "self_attn.k_proj.weight": vector[f"k_{number}"],
        }
        weights = {name: given.get(name, torch.zeros_like(weight)) for name, weight in layer.state_dict().items()}
        layer.load_state_dict(weights)
    return model
