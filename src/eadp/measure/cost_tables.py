"""Tables of multiply-adds and of plans, for `eadp flops` and `eadp plan`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from math import prod

import torch
from rich.table import Table

from eadp.architectures.configs import default_grids, load_config
from eadp.architectures.memory import available_memory, format_bytes, parse_dtype
from eadp.core import Grid
from eadp.measure import paper_recount
from eadp.measure.flops import Cost, count_prefill
from eadp.measure.plan import Planner, parse_bytes, parse_ratio


def cost_table(name: str, budgets: list[int], text: int, words: int, grids: list[Grid] | None) -> Table:
    """Build a table of giga multiply-adds by part, with one row per budget and the ratio to all tokens.

    Args:
        name: An architecture or a checkpoint.
        budgets: Numbers of visual tokens that stay.
        text: Number of text tokens of the prompt.
        words: Number of words of the question.
        grids: The grids of the image's blocks of tokens; None for the paper's.
    """
    config = load_config(name)
    grids = grids or default_grids(config)
    tokens = sum(prod(grid) for grid in grids)
    unpruned = count_prefill(config, grids, None, text, words)
    table = Table("kept", *(part.name for part in fields(Cost)), "total", "of all", title=f"{name}: giga multiply-adds")
    for keep in dict.fromkeys([tokens, *budgets]):
        cost = unpruned if keep >= tokens else count_prefill(config, grids, keep, text, words)
        parts = [f"{getattr(cost, part.name) / 1e9:,.1f}" for part in fields(Cost)]
        ratio = f"{cost.total / unpruned.total:.1%}"
        table.add_row(f"{min(keep, tokens):,}", *parts, f"{cost.total / 1e9:,.1f}", ratio)
    table.caption = (
        f"one image of {tokens:,} tokens, {text} text tokens; one multiply-add is two FLOPs; attention is counted in "
        "full; the steps of the greedy selection depend on the image and are not counted; newline tokens are not "
        "counted"
    )
    return table


def plan_table(
    name: str,
    latency: str | None,
    memory: str | None,
    text: int,
    words: int,
    grids: list[Grid] | None,
    batch: int,
    dtype: str,
) -> Table:
    """Build a table with two rows: all tokens, and the largest budget that reaches both goals.

    Args:
        name: An architecture or a checkpoint.
        latency: A latency such as 0.5x; None for no such goal.
        memory: A size such as 16GiB; None for no such goal.
        text: Number of text tokens per prompt, answer included.
        words: Number of words of the question.
        grids: The grids of the image's blocks of tokens; None for the paper's.
        batch: Number of prompts at the same time.
        dtype: The type of weights, cache and activations.
    """
    config = load_config(name)
    planner = Planner(config, grids or default_grids(config), text, words, parse_dtype(dtype), batch)
    size = None if memory is None else parse_bytes(memory)
    keeps = [planner.tokens]
    if latency is not None:
        keeps.append(planner.keep_for_latency(parse_ratio(latency)))
    if size is not None:
        keeps.append(planner.keep_for_memory(size))
    limit = available_memory(torch.device("cuda" if torch.cuda.is_available() else "cpu")) if size is None else size
    table = Table("", "keep", "prefill", "KV cache", "activations", "in all", "batch that fits", "context that fits")
    for label, keep in (("all tokens", planner.tokens), (f"{latency or ''} {memory or ''}".strip(), min(keeps))):
        need = planner.memory(keep)
        table.add_row(
            label,
            f"{keep:,}",
            f"{planner.latency(keep):.2f}x",
            *(format_bytes(part) for part in (need.cache, need.activations, need.total)),
            f"{planner.largest_batch(keep, limit):,}",
            f"{planner.longest_context(keep, limit):,}",
        )
    limit_source = "this machine has free now" if size is None else "are allowed"
    table.title = f"{name}: keep={min(keeps)}"
    table.caption = (
        f"{planner.tokens:,} visual tokens and {text} text tokens per prompt, batch of {batch}; weights "
        f"{format_bytes(need.weights)} in {dtype}. Prefill: multiply-adds, all parts included. Fits: into the "
        f"{format_bytes(limit)} that {limit_source}; 0: not even one. "
        "Context: text tokens of one prompt, within the model's positions. Activations are an estimate; the rest is "
        "exact."
    )
    return table


def paper_tables() -> Iterator[Table]:
    """Build, for each efficiency table of the paper, its rows and a recount of the differences between them."""
    for name in paper_recount.TABLES:
        table = Table(
            "heading", "tokens", "method", "prefill ms", "latency ms", "G", title=f"{name}: the paper's table"
        )
        for row in paper_recount.TABLES[name]:
            tokens = f"{row.tokens:,}" if row.tokens else "?"
            table.add_row(row.heading, tokens, row.method, f"{row.prefill}", f"{row.latency}", f"{row.giga:,.1f}")
        table.caption = paper_recount.REMARKS[name]
        yield table
        recount = Table("tokens", "saved, paper", "saved, counted", "off by", title="differences between its rows")
        for saving in paper_recount.compute_savings(name):
            recount.add_row(
                f"{saving.start:,} → {saving.end:,}",
                f"{saving.paper:,.1f}",
                f"{saving.counted:,.1f}",
                f"{saving.deviation:+.2%}",
            )
        recount.caption = (
            f"{paper_recount.multiply_adds_per_token(name) / 1e9:.3f} G per token: the linear layers and the head, for "
            "every token. The paper leaves out the products of attention, which are quadratic in the tokens. Its "
            "milliseconds were measured on one RTX 3090."
        )
        yield recount
