"""Helpers for methods inside the language model: recorded choices, and models deep enough for three cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from eadp.core import Selection
from eadp.methods import get_method
from eadp.methods.inside import Cut, InsideMethod, LayerView
from helpers import tiny
from helpers.manual_pruning import SPECIAL_IDS

NAMES = ("fastv", "pyramiddrop", "sparsevlm", "dart")


def method(name: str, keep: int | float = 0.3, **settings: Any) -> InsideMethod:
    """Return the method with a budget that counts the tokens after its last cut."""
    chosen = get_method(name, keep=keep, budget="after_prune", **settings)
    assert isinstance(chosen, InsideMethod)
    return chosen


@dataclass(frozen=True)
class Recording(InsideMethod):
    """Chooses as the method `of` does, and records its choices."""

    of: InsideMethod = field(kw_only=True)
    log: list[Selection] = field(default_factory=list)

    def __post_init__(self) -> None:
        # These are class attributes, but must be those of `of`.
        for name in ("name", "layers", "attention_from", "positions", "newlines"):
            object.__setattr__(self, name, getattr(self.of, name))

    def cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        return self.of.cuts(total, depth)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        self.log.append(self.of.choose(cut, view))
        return self.log[-1]

    def frozen(self) -> Replaying:
        """Return a method that repeats the recorded choices for any prompt."""
        return Replaying(of=self.of, choices=cycle(self.log))


@dataclass(frozen=True)
class Replaying(Recording):
    """Repeats recorded choices."""

    choices: Iterator[Selection] = field(kw_only=True)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        return next(self.choices)


DEPTH = 8


@cache
def deep(family: str, attention: str = "sdpa", depth: int = DEPTH) -> Any:
    """Return the family's tiny model with eight or more layers, enough for methods with three cuts."""
    kind, settings = tiny.CONFIGS[family]
    settings = settings | {"text_config": settings["text_config"] | {"num_hidden_layers": depth}}
    torch.manual_seed(0)
    model = hf.AutoModelForImageTextToText.from_config(kind(**settings), attn_implementation=attention).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) * (1.5 * weight.shape[-1] ** -0.5))
    model.generation_config.eos_token_id = None
    return model.requires_grad_(False)


def with_depth(name: str, keep: int = 5) -> InsideMethod:
    """Return a method that cuts before layers 2, 4 and 6 of 8, or only before layer 2."""
    layers = {"pyramiddrop": (8, 16, 24), "sparsevlm": (8, 16, 24)}.get(name, (8,))
    return method(name, keep, layers=layers, **({"recycle": 1.0} if name == "sparsevlm" else {}))


def generated(model: Any, inputs: dict[str, Any], **settings: Any) -> Tensor:
    defaults = {"max_new_tokens": 8, "do_sample": False, "suppress_tokens": SPECIAL_IDS}
    return model.generate(**inputs, **defaults | settings)[:, inputs["input_ids"].shape[1] :]
