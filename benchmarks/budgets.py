"""What a budget means for the methods inside the language model: tokens after each cut, and their mean over the layers.

python benchmarks/budgets.py        prints the table of docs/methods-inside.md: 576 visual tokens, 32 layers
"""

from __future__ import annotations

from eadp.methods import make
from eadp.methods.inside import InsideMethod, layer_mean

TOTAL, DEPTH = 576, 32
NAMES = {"FastV, DART": "fastv", "PyramidDrop": "pyramiddrop", "SparseVLM": "sparsevlm"}
KEEPS = (192, 128, 64, 32)


def cell(name: str, keep: int, budget: str) -> str:
    """Tokens left after each cut, and in brackets the mean over the layers."""
    method = make(name, keep=keep, budget=budget)
    assert isinstance(method, InsideMethod)
    try:
        cuts = method.cuts(TOTAL, DEPTH)
    except ValueError as error:
        return "at least " + str(error).rpartition("The lowest it can reach is ")[2].partition(",")[0]
    return f"{', '.join(str(cut.keep) for cut in cuts)} ({layer_mean(cuts, TOTAL, DEPTH):.1f})"


def table() -> str:
    rows = [["method", "budget", *(f"keep={keep}" for keep in KEEPS)], ["---"] * (2 + len(KEEPS))]
    for title, name in NAMES.items():
        for budget in ("after_prune", "layer_mean"):
            rows.append([title, budget, *(cell(name, keep, budget) for keep in KEEPS)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
