"""Multiply-adds as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from math import prod

import torch
from rich.table import Table

from eadp.architectures.configs import config_of, grids_of
from eadp.architectures.memory import available_memory, format_bytes, parse_dtype
from eadp.core import Grid
from eadp.measure import paper_recount
from eadp.measure.flops import Cost, prefill
from eadp.measure.plan import Planner, bytes_of, ratio_of


def costs(name: str, budgets: list[int], text: int, words: int, grids: list[Grid] | None) -> Table:
    """Giga multiply-adds by part, one row a budget, and the ratio to all tokens."""
    config = config_of(name)
    grids = grids or grids_of(config)
    tokens = sum(prod(grid) for grid in grids)
    whole = prefill(config, grids, None, text, words)
    table = Table("kept", *(part.name for part in fields(Cost)), "total", "of all", title=f"{name}: giga multiply-adds")
    for keep in dict.fromkeys([tokens, *budgets]):
        cost = whole if keep >= tokens else prefill(config, grids, keep, text, words)
        parts = [f"{getattr(cost, part.name) / 1e9:,.1f}" for part in fields(Cost)]
        table.add_row(f"{min(keep, tokens):,}", *parts, f"{cost.total / 1e9:,.1f}", f"{cost.total / whole.total:.1%}")
    table.caption = (
        f"one image of {tokens:,} tokens, {text} of text; one multiply-add is two FLOPs; attention in full; "
        "the greedy's own steps depend on the image and are timed, not counted; what is kept is all that is sent: "
        "newlines are not counted"
    )
    return table


def plan(
    name: str,
    latency: str | None,
    memory: str | None,
    text: int,
    words: int,
    grids: list[Grid] | None,
    batch: int,
    dtype: str,
) -> Table:
    """The budget that reaches both goals beside all tokens: latency, memory, and what batch or context then fits."""
    config = config_of(name)
    planner = Planner(config, grids or grids_of(config), text, words, parse_dtype(dtype), batch)
    size = None if memory is None else bytes_of(memory)
    keeps = [planner.tokens]
    if latency is not None:
        keeps.append(planner.for_latency(ratio_of(latency)))
    if size is not None:
        keeps.append(planner.for_memory(size))
    room = available_memory(torch.device("cuda" if torch.cuda.is_available() else "cpu")) if size is None else size
    table = Table("", "keep", "prefill", "KV cache", "activations", "in all", "batch that fits", "context that fits")
    for label, keep in (("all tokens", planner.tokens), (f"{latency or ''} {memory or ''}".strip(), min(keeps))):
        need = planner.memory(keep)
        table.add_row(
            label,
            f"{keep:,}",
            f"{planner.latency(keep):.2f}x",
            *(format_bytes(part) for part in (need.cache, need.activations, need.total)),
            f"{planner.batch_within(keep, room):,}",
            f"{planner.context_within(keep, room):,}",
        )
    whose = "this machine has left now" if size is None else "are allowed"
    table.title = f"{name}: keep={min(keeps)}"
    table.caption = (
        f"{planner.tokens:,} visual tokens and {text} of text, {batch} at once; weights "
        f"{format_bytes(need.weights)} in {dtype}. Prefill: multiply-adds, everything included. Fits: "
        f"{format_bytes(room)} that {whose}; 0: not even one. "
        "Context: text tokens of one prompt, within the model's positions. Activations are an estimate, the rest is "
        "exact."
    )
    return table


def beside_the_paper() -> Iterator[Table]:
    """The paper's rows, and the differences between them as counted here."""
    for name in paper_recount.TABLES:
        table = Table(
            "heading", "tokens", "method", "prefill ms", "latency ms", "G", title=f"{name}: the paper's table"
        )
        for row in paper_recount.TABLES[name]:
            tokens = f"{row.tokens:,}" if row.tokens else "?"
            table.add_row(row.heading, tokens, row.method, f"{row.prefill}", f"{row.latency}", f"{row.giga:,.1f}")
        table.caption = paper_recount.REMARKS[name]
        yield table
        counted = Table("tokens", "saved, paper", "saved, counted", "off by", title="differences between its rows")
        for step in paper_recount.steps(name):
            counted.add_row(
                f"{step.start:,} → {step.end:,}", f"{step.paper:,.1f}", f"{step.ours:,.1f}", f"{step.off:+.2%}"
            )
        counted.caption = (
            f"{paper_recount.per_token(name) / 1e9:.3f} G a token: the linear layers and the head, for every token. "
            "The paper leaves out attention's own products, quadratic in the tokens; its milliseconds are those of "
            "one RTX 3090."
        )
        yield counted
