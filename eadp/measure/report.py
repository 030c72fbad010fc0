"""Multiply-adds as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from math import prod

from rich.table import Table

from eadp.core import Grid
from eadp.measure import paper
from eadp.measure.architectures import config_of, grids_of
from eadp.measure.flops import Cost, prefill


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
        "the greedy's own steps depend on the image and are timed, not counted"
    )
    return table


def beside_the_paper() -> Iterator[Table]:
    """The paper's rows, and the differences between them as counted here."""
    for name in paper.TABLES:
        table = Table(
            "heading", "tokens", "method", "prefill ms", "latency ms", "G", title=f"{name}: the paper's table"
        )
        for row in paper.TABLES[name]:
            tokens = f"{row.tokens:,}" if row.tokens else "?"
            table.add_row(row.heading, tokens, row.method, f"{row.prefill}", f"{row.latency}", f"{row.giga:,.1f}")
        table.caption = paper.REMARKS[name]
        yield table
        counted = Table("tokens", "saved, paper", "saved, counted", "off by", title="differences between its rows")
        for step in paper.steps(name):
            counted.add_row(
                f"{step.start:,} → {step.end:,}", f"{step.paper:,.1f}", f"{step.ours:,.1f}", f"{step.off:+.2%}"
            )
        counted.caption = (
            f"{paper.per_token(name) / 1e9:.3f} G a token: the linear layers and the head, for every token. The paper "
            "leaves out attention's own products, quadratic in the tokens; its milliseconds are those of one RTX 3090."
        )
        yield counted
