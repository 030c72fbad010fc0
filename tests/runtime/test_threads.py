"""Threads that call one attached model at the same time get what single calls get."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.prompts import IMAGES
from helpers.simple_methods import EverySecond, Guide, Nearest, Ragged
from torch import Tensor, nn
from transformers import TextIteratorStreamer

import eadp
from eadp.methods import FastV, HiPrune

THREADS, CALLS = 8, 50
PROMPTS = [[[(28, 28)]], [[(28, 28), (28, 28)]], [[(28, 28)], [(28, 28), (28, 28)]]]
METHODS: list[dict[str, Any]] = [
    {"method": "divprune", "keep": 5},
    {"method": "visionzip", "keep": 4},
    {"method": "hiprune", "keep": 6, "positions": "renumber"},
    {"method": Nearest(keep=3), "question": "where is the cat?"},
    {"method": Nearest(keep=3), "question": "and the dog?"},
    {"method": "fastv", "keep": 4, "budget": "after_prune"},
    {"method": "pyramiddrop", "keep": 3, "budget": "after_prune", "positions": "renumber"},
    {"method": "sparsevlm", "keep": 4, "budget": "after_prune"},
    {"method": "dart", "keep": 4, "budget": "after_prune"},
    {"method": [Ragged(), FastV(keep=2, budget="after_prune")]},
]


@pytest.fixture
def short_switches() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def generated(pruned: eadp.Pruned, model: Any, inputs: dict[str, Tensor], settings: dict[str, Any]) -> list[Any]:
    with pruned.using(**settings):
        tokens, logits = answers(model, **inputs, max_new_tokens=2)
    return [tokens, logits, *(selection.indices for selection in pruned.last)]


def forwarded(pruned: eadp.Pruned, model: Any, inputs: dict[str, Tensor], settings: dict[str, Any]) -> list[Any]:
    with pruned.using(**settings):
        logits = model(**inputs, use_cache=False).logits
    return [logits, pruned.columns, *(selection.indices for selection in pruned.last)]


def streamed(pruned: eadp.Pruned, model: Any, inputs: dict[str, Tensor], settings: dict[str, Any]) -> list[Any]:
    """As a server streams: `generate` runs in a thread of its own, with the settings of the request."""
    if len(inputs["input_ids"]) > 1:
        return generated(pruned, model, inputs, settings)  # A streamer takes one prompt.
    streamer = TextIteratorStreamer(tiny.tokenizer(), skip_prompt=True)
    thread = Thread(target=generate_with, args=(pruned, model, inputs, settings, streamer))
    thread.start()
    text = "".join(streamer)
    thread.join()
    return [text]


def generate_with(
    pruned: eadp.Pruned, model: Any, inputs: dict[str, Tensor], settings: dict[str, Any], streamer: TextIteratorStreamer
) -> None:
    with pruned.using(**settings):
        model.generate(**inputs, max_new_tokens=3, do_sample=False, streamer=streamer)


def same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(one, two, strict=True)
    )


RUNS = (generated, forwarded, streamed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_many_threads_get_what_single_calls_get(seed: int, short_switches: None) -> None:
    model, choose = tiny.model("llava"), random.Random(seed)
    inputs = [tiny.inputs("llava", prompts, first=3 * number) for number, prompts in enumerate(PROMPTS)]
    stock = model(**inputs[0]).logits
    kinds = [(run, each, settings) for run in RUNS for each in range(len(inputs)) for settings in range(len(METHODS))]
    with eadp.attach(model, method=EverySecond(), guide=Guide("tower")) as pruned:

        def run(kind: tuple[Callable[..., list[Any]], int, int]) -> list[Any]:
            call, each, settings = kind
            return call(pruned, model, inputs[each], METHODS[settings])

        expected = {kind: run(kind) for kind in kinds}
        calls = [choose.choice(kinds) for _ in range(THREADS * CALLS)]
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(run, calls))
    wrong = [kind for kind, result in zip(calls, results, strict=True) if not same(result, expected[kind])]
    assert not wrong, f"{len(wrong)} of {len(calls)} calls differ: {wrong[:3]}"
    assert torch.equal(model(**inputs[0]).logits, stock)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "qwen3_vl"])
def test_threads_on_families_with_masks_and_deepstack_of_their_own(family: str, short_switches: None) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    methods = [{"method": "visionzip", "keep": 3}, {"method": "pool", "keep": 4}, {"method": "downsample", "keep": 4}]
    methods.append({"method": "pyramiddrop", "keep": 3, "budget": "after_prune"})
    with eadp.attach(model, method=EverySecond()) as pruned:
        expected = [generated(pruned, model, inputs, settings) for settings in methods]
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda number: generated(pruned, model, inputs, methods[number % 4]), range(16)))
    assert [same(result, expected[number % 4]) for number, result in enumerate(results)] == [True] * 16


def test_settings_of_a_thread_are_its_own() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", PROMPTS[0])
    with eadp.attach(model, method="divprune", keep=5) as pruned, ThreadPoolExecutor(1) as pool:

        def kept() -> int:
            model(**inputs)
            return len(pruned.last[0])

        with pruned.using(keep=3):
            assert (kept(), pool.submit(kept).result()) == (3, 5)
        pruned.set(keep=2)
        assert (kept(), pool.submit(kept).result()) == (2, 2)


def test_last_is_that_of_the_calling_thread_or_else_of_any() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", PROMPTS[0])
    with eadp.attach(model, method="divprune", keep=5) as pruned, ThreadPoolExecutor(1) as pool:
        pool.submit(model, **inputs).result()
        assert len(pruned.last[0]) == 5
        pruned.set(keep=3)
        model(**inputs)
        assert (len(pruned.last[0]), len(pool.submit(lambda: pruned.last[0]).result())) == (3, 5)


class Paused(EverySecond):
    """Waits in the middle of a prefill."""

    reached, resumed = Event(), Event()

    def select(self, *args: Any) -> Any:
        self.reached.set()
        assert self.resumed.wait(30)
        return super().select(*args)


def test_a_call_that_runs_while_the_model_is_detached_says_so() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", PROMPTS[0])
    stock, state = model(**inputs).logits, attributes(model)
    pruned = eadp.attach(model, method=Paused())
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(model, **inputs)
        assert Paused.reached.wait(30)
        pruned.detach()
        assert attributes(model) == state
        Paused.resumed.set()
        with pytest.raises(RuntimeError, match="the model was detached during this call"):
            call.result()
        assert torch.equal(pool.submit(model, **inputs).result().logits, stock)


@pytest.mark.slow
@pytest.mark.parametrize("method", [EverySecond(), FastV(keep=3, budget="after_prune"), HiPrune(keep=3)], ids=str)
def test_calls_around_attach_and_detach_are_pruned_or_unpruned_or_say_why_not(
    method: Any, short_switches: None
) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", PROMPTS[2])
    stock, state = answers(model, **inputs, max_new_tokens=2)[1], attributes(model)
    with eadp.attach(model, method=method) as pruned:
        right = [stock, answers(model, **inputs, max_new_tokens=2)[1]]
    finished = Event()

    def call() -> list[str]:
        wrong = []
        while not finished.is_set():
            try:
                logits = answers(model, **inputs, max_new_tokens=2)[1]
            except (RuntimeError, ValueError) as error:
                if not any(sentence in str(error) for sentence in SENTENCES):
                    wrong.append(repr(error))
            else:
                if not any(torch.equal(logits, each) for each in right):
                    wrong.append("other logits")
        return wrong

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call) for _ in range(3)]
        for _ in range(60):
            with pruned:
                finished.wait(0.01)
            finished.wait(0.01)
        finished.set()
        assert [each.result() for each in calls] == [[], [], []]
    assert attributes(model) == state
    assert torch.equal(answers(model, **inputs, max_new_tokens=2)[1], stock)


SENTENCES = (
    "the model was detached during this call",
    "this cache was filled while the model was pruned",
    "mm_encoder_outputs from before eadp.attach",
)


def attributes(model: nn.Module) -> list[Any]:
    return [({*vars(each)}, len(each._forward_hooks), len(each._forward_pre_hooks)) for each in model.modules()]


def replicate(module: nn.Module) -> Any:
    """What `torch.nn.DataParallel` makes for each device: modules that share the attributes of the originals."""
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else replicate(child)
    for name, weight in module._parameters.items():
        # Its weights are tensors of its own, here other ones, so that a mix-up shows.
        setattr(replica, name, None if weight is None else weight.detach() * 1.01)
    return replica


@pytest.mark.parametrize("family", ["llava", "llava_next", "gemma3"])
@pytest.mark.parametrize("method", ["visionzip", "pool", "fastv", "pyramiddrop"])
def test_replicas_run_on_their_own_modules(family: str, method: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    settings = {"budget": "after_prune"} if method in ("fastv", "pyramiddrop") else {}
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for weight in scaled.parameters():
            weight.mul_(1.01)
    with eadp.attach(scaled, method=method, keep=3, **settings):
        expected = scaled(**inputs, use_cache=False).logits
    with eadp.attach(model, method=method, keep=3, **settings):
        own = model(**inputs, use_cache=False).logits
        assert torch.equal(replicate(model)(**inputs, use_cache=False).logits, expected)
    assert not torch.equal(own, expected)
