"""Launches and waits of a pruned prefill on the pretend device, beside those of the stock model.

counted = count_prefill("llava_next", "five crops", "eadp")
counted.launches, counted.waits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import torch
import transformers as hf

import eadp
from eadp.core import Selection
from eadp.models.guides import CLIPGuide, EmbeddingGuide, SiglipGuide
from eadp.models.guides.base import Guide
from helpers import tiny
from helpers.pretend_device import STOCK, Counts, module_on_device, on_device, pretend_device, read

METHODS = ("eadp", "cdpruner", "divprune", "visionzip", "fastv")
READ_TEXT = ("eadp", "cdpruner")
QUESTIONS = ("What is it?", "Where is the red cup?", "Who?", "Is the dog left of the cup?")

Sizes = list[tuple[int, ...]]

ONE_BLOCK: dict[str, tuple[int, ...]] = {
    "qwen2_5_vl": (16, 24),
    "qwen3_vl": (16, 24),
    "internvl": (24, 24),
    "idefics3": (24, 24),
    "smolvlm": (24, 24),
}
"""The size of an image of one block, where it is not that of the vision tower."""

FIVE_CROPS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), (56, 56)),
    **dict.fromkeys(("internvl", "idefics3", "smolvlm"), (48, 48)),
}
"""The size of an image that is cut into four crops, which follow the whole image or precede it."""

CLIPS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("llava_next_video", "llava_onevision"), (64, 28, 28)),
    **dict.fromkeys(("qwen2_5_vl", "qwen3_vl"), (64, 16, 16)),
}
"""The size of a clip of 64 frames."""

INPUTS = {"one image": 5, "five crops": 10, "64 frames": 128, "batch of 4": 5}
"""The inputs of the table, and how many tokens of an image or clip stay."""


def sizes_of(family: str, inputs: str) -> list[Sizes]:
    """Return the sizes of the images of each prompt. A family without crops or clips gets as many images instead.

    Besides the inputs of the table, there are "3 images" of one prompt and "3 prompts" of one image, and so on.
    """
    side = tiny.model(family).config.vision_config.image_size if family not in ONE_BLOCK else 0
    image = ONE_BLOCK.get(family, (side, side))
    if inputs == "five crops":
        return [[FIVE_CROPS[family]]] if family in FIVE_CROPS else [[image] * 5]
    if inputs == "64 frames":
        return [[CLIPS[family]]] if family in CLIPS else [[image] * 64]
    if inputs.endswith(("images", "prompts")):
        count, what = inputs.split()
        return [[image] * int(count)] if what == "images" else [[image]] * int(count)
    return [[image]] * (4 if inputs == "batch of 4" else 1)


@dataclass(frozen=True)
class PrefillCounts:
    """What a pruned prefill did on the device beyond what the stock model does.

    Attributes:
        launches: How many kernels more it launched, or eadp itself, whichever is more: the stock model saves some where
            a mask becomes unnecessary.
        waits: How many times more it waited, likewise.
        pruned: All counts of the pruned prefill, by line.
        selections: What it kept, with all tensors on the CPU.
        logits: Its logits at the last token of each prompt, on the CPU.
    """

    launches: int
    waits: int
    pruned: Counts
    selections: Sequence[Selection]
    logits: torch.Tensor


def count_prefill(family: str, inputs: str, method: str, **settings: Any) -> PrefillCounts:
    """Count a prefill whose questions the text encoder has seen before."""
    prompts = tiny_inputs(family, inputs)
    model, stock = _model(family), _stock(family, inputs)
    asked = arguments(family, inputs, method) | settings
    with eadp.attach(model, tiny.tokenizer(), **asked) as pruned:
        with pretend_device():
            model(**on_device(prompts))
        with pretend_device() as counts:
            output = model(**on_device(prompts))
        with pretend_device():
            selections = [on_cpu(selection) for selection in pruned.last]
    own_launches, own_waits = (kind.total() - kind[STOCK] for kind in (counts.launches, counts.waits))
    return PrefillCounts(
        max(own_launches, counts.launches.total() - stock.launches.total()),
        max(own_waits, counts.waits.total() - stock.waits.total()),
        counts,
        selections,
        read(output.logits)[:, -1],
    )


def on_cpu(selection: Selection) -> Selection:
    """Return a selection with everything that is deferred computed, and with its tensors on the CPU."""
    values = {each.name: getattr(selection, each.name) for each in fields(selection)}
    relevance = values.pop("relevance")
    if relevance is not None:
        relevance = replace(relevance, **read({each.name: getattr(relevance, each.name) for each in fields(relevance)}))
    return Selection(**read(values), relevance=relevance)


def prefill_on_cpu(family: str, inputs: str, method: str, **settings: Any) -> tuple[Sequence[Selection], torch.Tensor]:
    """Run the same prefill on the CPU. Returns what it kept, and the logits at the last token of each prompt."""
    model, asked = tiny.model(family), arguments(family, inputs, method, on_cpu=True) | settings
    with eadp.attach(model, tiny.tokenizer(), **asked) as pruned:
        output = model(**tiny_inputs(family, inputs))
        return pruned.last, output.logits[:, -1]


def arguments(family: str, inputs: str, method: str, on_cpu: bool = False) -> dict[str, Any]:
    """Return the arguments of `attach` for one cell of the table."""
    asked: dict[str, Any] = {"method": method, "keep": _keep(family, inputs)}
    if method in READ_TEXT:
        prompts = len(sizes_of(family, inputs))
        asked |= {"guide": _guide(family, on_cpu), "question": [QUESTIONS[row % 4] for row in range(prompts)]}
    return asked


def _keep(family: str, inputs: str) -> int:
    """Where each crop or frame is an image of its own, each has the budget of one."""
    prompt, *_ = sizes_of(family, inputs)
    return INPUTS["one image"] if len(prompt) > 1 else INPUTS.get(inputs, INPUTS["one image"])


@cache
def tiny_inputs(family: str, inputs: str) -> dict[str, torch.Tensor]:
    """Return the inputs of a prefill, on the CPU."""
    return tiny.inputs(family, sizes_of(family, inputs))


@cache
def _model(family: str) -> hf.PreTrainedModel:
    return module_on_device(tiny.model(family))


@cache
def _stock(family: str, inputs: str) -> Counts:
    with pretend_device() as counts:
        _model(family)(**on_device(tiny_inputs(family, inputs)))
    return counts


@cache
def _guide(family: str, on_cpu: bool) -> Guide:
    """Return the guide that `attach` finds for the family: the text encoder of its tower, or the embeddings."""
    model: Any = tiny.model(family) if on_cpu else _model(family)
    config, tokenizer = model.config, tiny.tokenizer()
    text = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "projection_dim": 16,
        "vocab_size": tiny.VOCABULARY,
        "max_position_embeddings": 77,
        "bos_token_id": tiny.IDS["<s>"],
        "eos_token_id": tiny.IDS["</s>"],
        "pad_token_id": tiny.IDS["<pad>"],
    }
    place = (lambda module: module) if on_cpu else module_on_device
    torch.manual_seed(0)
    if config.vision_config.model_type == "clip_vision_model":
        clip = place(
            hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=config.vision_config, projection_dim=16))
        )
        return CLIPGuide(
            text_model=clip.text_model,
            text_projection=clip.text_projection,
            visual_projection=clip.visual_projection,
            post_layernorm=model.model.vision_tower.post_layernorm,
            tokenizer=tokenizer,
        )
    if family == "llava_onevision":
        siglip = place(hf.SiglipTextModel(hf.SiglipTextConfig(**text)))
        return SiglipGuide(
            text_model=siglip, post_layernorm=model.model.vision_tower.post_layernorm, tokenizer=tokenizer
        )
    return EmbeddingGuide(model.get_input_embeddings(), tokenizer)
