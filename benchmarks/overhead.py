"""Measure the cost of the hooks: a pruned model against the original model on the same, already shortened sequence.

The original model gets what pruning leaves: fewer features, fewer ids, and explicit positions. Both then do the same
arithmetic, so the ratio of their times is the cost of the hooks: finding the images, compaction, the ledger and masks.
The selection is a fixed list of tokens. Both take turns within one run, in CPU time on one thread; the results are
medians over rounds.

    python benchmarks/overhead.py            # about two minutes
    python benchmarks/overhead.py --quick
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import common
import torch
import transformers as hf
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import eadp
from eadp import BeforeMethod, Selection, TextGuide, VisualTokens
from eadp.methods.base import Positions
from eadp.runtime.hooks import Around, Forward, Hooks
from eadp.utils.statistics import median_interval

IMAGE = 31999
LIMITS = {"decode": 0.02, "prefill": 0.01}
"""Largest share of the time that may be spent inside the hooks."""

ORIGINAL, PRUNED = "stock", "eadp"
"""Names of the two models in the results."""


@dataclass(frozen=True)
class EveryNth(BeforeMethod):
    """Keeps every n-th token, at no cost."""

    name: ClassVar[str] = "fixed"
    citation: ClassVar[str] = "none"
    positions: ClassVar[Positions] = "keep"
    step: int = 4

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        return Selection(torch.arange(0, len(tokens), self.step), len(tokens), self.name)


def build_model() -> Any:
    """Build a LLaVA with 576 tokens per image and about 100 million random parameters."""
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


def make_inputs() -> dict[str, Tensor]:
    ids = torch.randint(3, 30000, (1, 640))
    ids[0, 5 : 5 + 576] = IMAGE
    return {"input_ids": ids, "pixel_values": torch.randn(1, 3, 336, 336)}


def shortened_prefill(model: Any, inputs: dict[str, Tensor], columns: Tensor) -> Callable[[], Any]:
    """Build the prefill of the original model on the kept columns of the prompt."""
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
    """Time the prefill and the decoding of both models, in milliseconds per round."""
    model, inputs = build_model(), make_inputs()
    pruned = eadp.attach(model, method=EveryNth())
    attached = model(**inputs, use_cache=True, logits_to_keep=1)
    columns = pruned.columns
    pruned.detach()
    if columns is None:
        raise RuntimeError("the prompt was not pruned")
    original_prefill = shortened_prefill(model, inputs, columns)
    original = original_prefill()
    torch.testing.assert_close(original.logits, attached.logits, rtol=1e-4, atol=1e-4)
    token, length = torch.tensor([[7]]), inputs["input_ids"].shape[1]

    def decode_step(cache: Any) -> Callable[[], Any]:
        def run() -> Any:
            out = model(input_ids=token, position_ids=torch.tensor([[length]]), past_key_values=cache)
            cache.crop(-1)
            return out

        return run

    def repeat(call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: [call() for _ in range(8)]

    cases = {
        "prefill": {
            ORIGINAL: original_prefill,
            PRUNED: lambda: model(**inputs, use_cache=True, logits_to_keep=1),
        },
        "decode": {
            ORIGINAL: repeat(decode_step(original.past_key_values)),
            PRUNED: repeat(decode_step(attached.past_key_values)),
        },
    }
    with torch.inference_mode():
        contexts = {PRUNED: lambda: eadp.attach(model, method=EveryNth())}
        return {name: common.time_interleaved(calls, repeats, contexts) for name, calls in cases.items()}


class TimedHooks(Hooks):
    """Hooks that sum up the CPU time spent inside them."""

    milliseconds = 0.0

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        super().before(module, self._timed(hook))

    def after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        super().after(module, self._timed(hook))

    def around(self, module: nn.Module, call: Around) -> None:
        def timed(called: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            def forward_not_counted(*args: Any, **kwargs: Any) -> Any:
                start = time.process_time_ns()
                try:
                    return forward(*args, **kwargs)
                finally:
                    TimedHooks.milliseconds -= (time.process_time_ns() - start) / 1e6

            return self._timed(call)(called, forward_not_counted, args, kwargs)

        super().around(module, timed)

    @staticmethod
    def _timed(hook: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time_ns()
            try:
                return hook(*args, **kwargs)
            finally:
                TimedHooks.milliseconds += (time.process_time_ns() - start) / 1e6

        return timed


def measure_hook_shares(repeats: int) -> dict[str, float]:
    """Measure the share of a pruned prefill and of a decode step that is spent inside the hooks, as medians."""
    model, inputs = build_model(), make_inputs()
    token, length = torch.tensor([[7]]), inputs["input_ids"].shape[1]
    shares: dict[str, list[float]] = {"prefill": [], "decode": []}
    with torch.inference_mode(), mock.patch("eadp.runtime.attach.Hooks", TimedHooks):
        pruned = eadp.attach(model, method=EveryNth())
        for _ in range(repeats):
            cache = None
            for name in shares:
                TimedHooks.milliseconds, start = 0.0, time.process_time_ns()
                if name == "prefill":
                    cache = model(**inputs, use_cache=True, logits_to_keep=1).past_key_values
                else:
                    model(input_ids=token, position_ids=torch.tensor([[length]]), past_key_values=cache)
                shares[name].append(TimedHooks.milliseconds / ((time.process_time_ns() - start) / 1e6))
        pruned.detach()
    return {name: statistics.median(values) for name, values in shares.items()}


def main(quick: bool = False) -> None:
    """Measure, print, and write benchmarks/results/overhead.json; fail if the share of the hooks exceeds its limit."""
    common.use_one_thread()
    shares = measure_hook_shares(5 if quick else 20)
    rounds = measure(10 if quick else 60)
    times = {name: common.medians(each) for name, each in rounds.items()}
    table = Table("", "in the hooks", "limit", "original ms", "pruned ms", "ratio", "95 %")
    ratios = {}
    for name, each in rounds.items():
        # The ratio is taken within each round, so that a machine that is busy for a while slows both sides.
        ratio = median_interval([ours / base for ours, base in zip(each[PRUNED], each[ORIGINAL], strict=True)])
        ratios[name] = ratio.median
        pruned, original = times[name][PRUNED], times[name][ORIGINAL]
        within = [f"{shares[name]:.2%}", f"{LIMITS[name]:.0%}"]
        table.add_row(
            name,
            *within,
            f"{original:.1f}",
            f"{pruned:.1f}",
            f"{ratio.median:.4f}",
            f"{ratio.low:.4f}–{ratio.high:.4f}",
        )
    Console(width=100).print(table)
    common.save("overhead", {"times": times, "ratios": ratios, "in_hooks": shares})
    if any(share > LIMITS[name] for name, share in shares.items()):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
