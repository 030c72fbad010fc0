"""The paper's three efficiency tables, and a recount of their FLOPs.

The paper's "FLOPs" are the multiply-adds of the linear layers and the head for every token of the prompt: the number of
parameters without the embedding table, times the number of tokens. The products of attention, which grow with the
square of the tokens, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from eadp.architectures.configs import ARCHITECTURES, build_meta_model
from eadp.measure.flops import count_linear_weights
from eadp.paper import ALL_TOKENS, PaperRow, tables
from eadp.paper.layout import METHOD_TITLES


@dataclass(frozen=True)
class EfficiencyRow:
    """A row as the paper prints it.

    Attributes:
        heading: The heading above the row.
        tokens: The number of visual tokens that the row's figures imply; 0 if they fit no number.
        method: The name of the method.
        prefill: Milliseconds of the prefill.
        latency: Milliseconds of the whole answer.
        giga: Giga multiply-adds.
    """

    heading: str
    tokens: int
    method: str
    prefill: float
    latency: float
    giga: float


def _read_row(row: PaperRow) -> EfficiencyRow:
    figures = row.figures
    method = METHOD_TITLES.get(row.method, row.method)
    return EfficiencyRow(row.heading, row.keep or 0, method, figures["prefill"], figures["latency"], figures["FLOPs"])


TABLES = {table.model.lower(): [_read_row(row) for row in table.rows] for table in tables("efficiency")}
REMARKS = {table.model.lower(): "\n".join(table.remarks) for table in tables("efficiency")}


@dataclass(frozen=True)
class Saving:
    """Giga multiply-adds saved from one budget to the next.

    Attributes:
        start: The larger number of visual tokens.
        end: The smaller number of visual tokens.
        paper: The saving according to the paper's rows.
        counted: The saving as counted here.
    """

    start: int
    end: int
    paper: float
    counted: float

    @property
    def deviation(self) -> float:
        """The relative difference of the count from the paper."""
        return self.counted / self.paper - 1


def multiply_adds_per_token(name: str) -> int:
    """Count the multiply-adds of one token in the linear layers and the head of an architecture."""
    model = build_meta_model(ARCHITECTURES[name]())
    return count_linear_weights(model.model.language_model) + model.lm_head.weight.numel()


def compute_savings(name: str) -> list[Saving]:
    """Compute the savings between consecutive rows of the paper's table.

    The rows differ in their tokens only, so the text, the vision tower and the guide cancel out.
    """
    token = multiply_adds_per_token(name) / 1e9
    rows = [row for row in TABLES[name] if row.method in (ALL_TOKENS, "DivPrune") and row.tokens]
    return [Saving(a.tokens, b.tokens, a.giga - b.giga, (a.tokens - b.tokens) * token) for a, b in pairwise(rows)]
