"""Thousands of prefills with everything that may happen in between: memory stays flat, and the model as it was."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.simple_methods import EverySecond, Guide, Nearest, Ragged
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import eadp
from eadp.core import Selection, VisualTokens
from eadp.methods import FastV

PREFILLS = 2000
PROMPTS = [[[(28, 28)]], [[(28, 28), (28, 28)]], [[(28, 28)], [(28, 28), (28, 28)]]]
ERRORS = (ZeroDivisionError, KeyboardInterrupt)


class Failing(EverySecond):
    """Fails in the middle of a prefill."""

    error: type[BaseException] = ZeroDivisionError

    def select(self, tokens: VisualTokens, text: Any = None) -> Selection:
        raise self.error


SETTINGS: list[dict[str, Any]] = [
    {"method": EverySecond(), "positions": "keep"},
    {"method": Ragged(), "positions": "renumber"},
    {"method": "visionzip", "keep": 4},
    {"method": "hiprune", "keep": 3},
    {"method": "pool", "keep": 4},
    {"method": Nearest(keep=3), "guide": Guide("tower"), "question": "where?"},
    {"method": "fastv", "keep": 3, "budget": "after_prune"},
    {"method": "pyramiddrop", "keep": 3, "budget": "after_prune"},
    {"method": [Ragged(), FastV(keep=2, budget="after_prune")]},
]


def live_tensors() -> tuple[int, int]:
    """How many tensors there are, and their bytes."""
    gc.collect()
    # By their exact types: dead weak references have none, and the fake tensors of a compiler have no size.
    tensors = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]
    return len(tensors), sum(each.nbytes for each in tensors)


def everything(model: nn.Module) -> list[Any]:
    """What pruning could leave on a model: each attribute by its identity, and the numbers of the hooks."""
    return [
        {name: list(value) if name.endswith("_hooks") else id(value) for name, value in vars(each).items()}
        for each in model.modules()
    ]


class Soak:
    """One step after the other on one model."""

    def __init__(self, seed: int) -> None:
        self.model = tiny.model("llava")
        self.random = random.Random(seed)
        self.inputs = [tiny.inputs("llava", prompts) for prompts in PROMPTS]
        self.modules = [
            *self.model.model.vision_tower.encoder.layers,
            self.model.model.multi_modal_projector,
            *self.model.model.language_model.layers,
            *(layer.self_attn for layer in self.model.model.language_model.layers),
        ]
        self.pruned: Any = None
        self.prefills = 0

    def step(self) -> None:
        steps: list[Callable[[], None]] = [*[self.forward] * 4, self.generate, self.fail, self.fail_in_method]
        self.random.choice([self.attach, self.attach, self.detach, self.change, self.forward_using, *steps])()

    def attach(self) -> None:
        if self.pruned is None:
            self.pruned = eadp.attach(self.model, **self.random.choice(SETTINGS))
        elif not self.pruned.attached:
            self.pruned.__enter__()

    def detach(self) -> None:
        if self.pruned is not None and self.pruned.attached:
            self.random.choice([self.pruned.detach, lambda: eadp.detach(self.model)])()
            self.pruned = self.random.choice([None, self.pruned])

    def change(self) -> None:
        if self.pruned is not None:
            self.pruned.set(**self.random.choice(SETTINGS))

    def run(self, run: Callable[..., Any] | None = None) -> None:
        self.prefills += 1
        (run or self.model)(**self.random.choice(self.inputs))

    def forward(self) -> None:
        self.run()

    def generate(self) -> None:
        beams = self.random.choice([1, 1, 2])
        self.run(lambda **inputs: self.model.generate(**inputs, max_new_tokens=2, num_beams=beams))

    def forward_using(self) -> None:
        if self.pruned is not None:
            with self.pruned.using(**self.random.choice(SETTINGS)):
                self.run()

    def fail(self) -> None:
        error = self.random.choice(ERRORS)

        def fail(*call: Any) -> None:
            raise error

        module = self.random.choice(self.modules)
        register = self.random.choice([module.register_forward_pre_hook, module.register_forward_hook])
        handle = register(fail)
        try:
            with pytest.raises(error):
                self.run()
        finally:
            handle.remove()

    def fail_in_method(self) -> None:
        if self.pruned is not None and self.pruned.attached:
            Failing.error = self.random.choice(ERRORS)
            with pytest.raises(Failing.error), self.pruned.using(method=Failing()):
                self.run()


@pytest.mark.slow
def test_thousands_of_prefills_leave_the_model_and_the_memory_as_they_were() -> None:
    soak = Soak(seed=0)
    model, inputs = soak.model, soak.inputs[2]
    stock, weights = model(**inputs).logits, {name: weight.clone() for name, weight in model.state_dict().items()}
    state, registered, measured = everything(model), set(ALL_ATTENTION_FUNCTIONS), []
    for quarter in range(1, 5):
        while soak.prefills < quarter * PREFILLS // 4:
            soak.step()
        if soak.pruned is not None:
            soak.pruned.detach()
        soak.pruned = None
        measured.append(live_tensors())
    assert measured[1:] == measured[:1] * 3
    assert everything(model) == state
    assert set(ALL_ATTENTION_FUNCTIONS) == registered
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert torch.equal(model(**inputs).logits, stock)
