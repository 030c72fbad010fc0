"""The paper's three efficiency tables, and what a recount gives.

Its "FLOPs" are the multiply-adds of the linear layers, the head included, for every token of the prompt: parameters
without the embedding table, times tokens. Attention's own products, which grow with the square of the tokens, are left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from eadp.architectures.configs import ARCHITECTURES, build_meta_model
from eadp.measure.flops import linear_weights
from eadp.paper import ALL_TOKENS, PaperRow, tables
from eadp.paper.layout import METHOD_TITLES


@dataclass(frozen=True)
class EfficiencyRow:
    """What the paper prints, in milliseconds and giga multiply-adds; tokens: how many the figures say
    there were, 0 where they fit no count."""

    heading: str
    tokens: int
    method: str
    prefill: float
    latency: float
    giga: float


def _row(row: PaperRow) -> EfficiencyRow:
    figures = row.figures
    method = METHOD_TITLES.get(row.method, row.method)
    return EfficiencyRow(row.heading, row.keep or 0, method, figures["prefill"], figures["latency"], figures["FLOPs"])


TABLES = {table.model.lower(): [_row(row) for row in table.rows] for table in tables("efficiency")}
REMARKS = {table.model.lower(): "\n".join(table.remarks) for table in tables("efficiency")}


@dataclass(frozen=True)
class Step:
    """From one budget to the next: giga multiply-adds saved, as the paper's rows say and as counted here."""

    start: int
    end: int
    paper: float
    ours: float

    @property
    def off(self) -> float:
        return self.ours / self.paper - 1


def per_token(name: str) -> int:
    """Multiply-adds of one token in the linear layers and the head."""
    model = build_meta_model(ARCHITECTURES[name]())
    return linear_weights(model.model.language_model) + model.lm_head.weight.numel()


def steps(name: str) -> list[Step]:
    """The paper's rows differ by tokens alone: the text, the tower and the guide drop out of each difference."""
    token = per_token(name) / 1e9
    rows = [row for row in TABLES[name] if row.method in (ALL_TOKENS, "DivPrune") and row.tokens]
    return [Step(a.tokens, b.tokens, a.giga - b.giga, (a.tokens - b.tokens) * token) for a, b in pairwise(rows)]
