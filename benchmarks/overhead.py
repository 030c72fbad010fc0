"""What the hooks cost: a pruned model beside the stock model on the same, already shortened sequence.

The stock model gets by hand what pruning leaves: fewer features, fewer ids, explicit positions. Both then do the same
arithmetic, so the ratio of their times is the price of the hooks: finding the images, compaction, the ledger, masks.
The choice of tokens itself is a fixed list. Both take turns within one run, in CPU time, on one thread; medians over
rounds.

    python benchmarks/overhead.py            # about two minutes
    python benchmarks/overhead.py --quick
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import common
import numpy as np
import torch
import transformers as hf
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import eadp
from eadp import BeforeMethod, Selection, TextGuide, VisualTokens
from eadp.runtime.hooks import Hooks
from eadp.utils.statistics import median_interval

IMAGE = 31999
LIMITS = {"decode": 0.02, "prefill": 0.01}


@dataclass(frozen=True)
class Fixed(BeforeMethod):
    """Every k-th token, a list that is made once."""

    name: ClassVar[str] = "fixed"
    citation: ClassVar[str] = "none"
    step: int = 4

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        return Selection(torch.arange(0, len(tokens), self.step), len(tokens), self.name)


def model_of_100m() -> Any:
    """LLaVA's architecture: 576 tokens an image, about 100 million parameters."""
    torch.manual_seed(0)
    vision = hf.CLIPVisionConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=336,
        patch_size=14,
        attn_implementation="sdpa",
    )
    text = hf.LlamaConfig(
        hidden_size=640,
        intermediate_size=1792,
        num_hidden_layers=12,
        num_attention_heads=10,
        vocab_size=32000,
    )
    return hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    ).eval()


def prompt() -> dict[str, Tensor]:
    ids = torch.randint(3, 30000, (1, 640))
    ids[0, 5 : 5 + 576] = IMAGE
    return {"input_ids": ids, "pixel_values": torch.randn(1, 3, 336, 336)}


def shortened(model: Any, inputs: dict[str, Tensor], columns: Tensor) -> Callable[[], Any]:
    """The stock model's prefill on the kept columns."""
    kept = columns[0]
    rows = kept[inputs["input_ids"][0] == IMAGE]
    ids, positions = inputs["input_ids"][:, kept], torch.arange(len(kept))[kept][None]

    def run() -> Any:
        output = model.model.get_image_features(inputs["pixel_values"], return_dict=True)
        output.pooler_output = [output.pooler_output[0][rows]]
        return model(
            input_ids=ids,
            position_ids=positions,
            mm_encoder_outputs={"image": output},
            use_cache=True,
            logits_to_keep=1,
        )

    return run


def measure(repeats: int) -> dict[str, dict[str, list[float]]]:
    model, inputs = model_of_100m(), prompt()
    pruned = eadp.attach(model, method=Fixed())
    attached = model(**inputs, use_cache=True, logits_to_keep=1)
    columns = pruned.columns
    pruned.detach()
    if columns is None:
        raise RuntimeError("the prompt was not pruned")
    stock_prefill = shortened(model, inputs, columns)
    stock = stock_prefill()
    torch.testing.assert_close(stock.logits, attached.logits, rtol=1e-4, atol=1e-4)
    token, length = torch.tensor([[7]]), inputs["input_ids"].shape[1]

    def step(cache: Any) -> Callable[[], Any]:
        def run() -> Any:
            out = model(input_ids=token, position_ids=torch.tensor([[length]]), past_key_values=cache)
            cache.crop(-1)
            return out

        return run

    def several(call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: [call() for _ in range(8)]

    cases = {
        "prefill": {
            "stock": stock_prefill,
            "eadp": lambda: model(**inputs, use_cache=True, logits_to_keep=1),
        },
        "decode": {
            "stock": several(step(stock.past_key_values)),
            "eadp": several(step(attached.past_key_values)),
        },
    }
    with torch.inference_mode():
        around = {"eadp": lambda: eadp.attach(model, method=Fixed())}
        return {name: common.interleaved(calls, repeats, around) for name, calls in cases.items()}


class Timed(Hooks):
    """Hooks that add up the CPU time which is spent inside them."""

    milliseconds = 0.0

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        super().before(module, self._timed(hook))

    def after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        super().after(module, self._timed(hook))

    @staticmethod
    def _timed(hook: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time_ns()
            try:
                return hook(*args, **kwargs)
            finally:
                Timed.milliseconds += (time.process_time_ns() - start) / 1e6

        return timed


def inside_hooks(repeats: int) -> dict[str, float]:
    """The share of a pruned prefill and of a decode step that is spent inside the hooks: medians of single calls."""
    model, inputs = model_of_100m(), prompt()
    token, length = torch.tensor([[7]]), inputs["input_ids"].shape[1]
    shares: dict[str, list[float]] = {"prefill": [], "decode": []}
    with torch.inference_mode(), mock.patch("eadp.runtime.attach.Hooks", Timed):
        pruned = eadp.attach(model, method=Fixed())
        for _ in range(repeats):
            cache = None
            for name in shares:
                Timed.milliseconds, start = 0.0, time.process_time_ns()
                if name == "prefill":
                    cache = model(**inputs, use_cache=True, logits_to_keep=1).past_key_values
                else:
                    model(input_ids=token, position_ids=torch.tensor([[length]]), past_key_values=cache)
                shares[name].append(Timed.milliseconds / ((time.process_time_ns() - start) / 1e6))
        pruned.detach()
    return {name: float(np.median(values)) for name, values in shares.items()}


def main(quick: bool = False) -> None:
    """Both measures, printed and written to benchmarks/results/overhead.json; fails where the hooks' share is large."""
    common.one_thread()
    shares = inside_hooks(5 if quick else 20)
    rounds = measure(10 if quick else 60)
    times = {name: common.medians(each) for name, each in rounds.items()}
    table = Table("", "in the hooks", "limit", "stock ms", "eadp ms", "ratio", "95 %")
    ratios = {}
    for name, each in rounds.items():
        # Round by round, so that a machine that is busy for a while slows both.
        by_round = np.array(each["eadp"]) / np.array(each["stock"])
        ratio = median_interval(by_round)
        ratios[name] = ratio.median
        ours, stock = times[name]["eadp"], times[name]["stock"]
        within = [f"{shares[name]:.2%}", f"{LIMITS[name]:.0%}"]
        table.add_row(
            name, *within, f"{stock:.1f}", f"{ours:.1f}", f"{ratio.median:.4f}", f"{ratio.low:.4f}–{ratio.high:.4f}"
        )
    Console(width=100).print(table)
    common.save("overhead", {"times": times, "ratios": ratios, "in_hooks": shares})
    if any(share > LIMITS[name] for name, share in shares.items()):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
