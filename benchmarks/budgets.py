"""Print what a budget means for methods inside the language model: tokens after each cut, and their mean over layers.

python benchmarks/budgets.py        # the table of docs/methods/inside.md: 576 visual tokens, 32 layers
"""

from __future__ import annotations

from eadp.methods import get_method
from eadp.methods.inside import Cut, InsideMethod, mean_tokens_per_layer

TOTAL, DEPTH = 576, 32
NAMES = {"FastV": "fastv", "DART": "dart", "PyramidDrop": "pyramiddrop", "SparseVLM": "sparsevlm"}
KEEPS = (192, 128, 96, 64, 32)


def get_inside_method(name: str, **settings: object) -> InsideMethod:
    method = get_method(name, **settings)
    assert isinstance(method, InsideMethod)
    return method


def format_cuts(cuts: tuple[Cut, ...]) -> str:
    """Format the tokens left after each cut and, in brackets, their mean over the layers."""
    return f"{', '.join(str(cut.keep) for cut in cuts)} ({mean_tokens_per_layer(cuts, TOTAL, DEPTH):.1f})"


def cell(name: str, keep: int, budget: str) -> str:
    """Format one cell: the cuts, or the lowest budget that the method can reach."""
    try:
        return format_cuts(get_inside_method(name, keep=keep, budget=budget).cuts(TOTAL, DEPTH))
    except ValueError as error:
        return "at least " + str(error).rpartition("The lowest it can reach is ")[2].partition(",")[0]


def table() -> str:
    rows = [["method", "budget", *(f"keep={keep}" for keep in KEEPS)], ["---"] * (2 + len(KEEPS))]
    for title, name in NAMES.items():
        for budget in get_inside_method(name).budgets:
            rows.append([title, budget, *(cell(name, keep, budget) for keep in KEEPS)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    default_cuts = format_cuts(get_inside_method("pyramiddrop").cuts(TOTAL, DEPTH))
    return "\n".join([*lines, "", f"Without `keep`, PyramidDrop leaves {default_cuts}."])


if __name__ == "__main__":
    print(table())
