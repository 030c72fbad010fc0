"""Write the table of launches and waits: python tests/helpers/table_of_prefills.py [family …]

Run it from the repository with TRITON_INTERPRET=1 and tests/ on the path. Without families, it writes all of them; with
some, it replaces their rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from helpers import tiny
from helpers.prefill_counts import CLIPS, INPUTS, METHODS, count_prefill

TABLE = Path(__file__).parents[1] / "runtime" / "prefill_counts.md"
HEAD = f"| family | input | {' | '.join(METHODS)} |"
INTRODUCTION = """Kernel launches / waits of a pruned prefill on a pretend GPU, beside those of the stock model.

"""


def read_table() -> dict[tuple[str, str, str], tuple[int, int]]:
    """Return launches and waits by family, input and method."""
    table = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 2 + len(METHODS) and "/" in cells[-1]:
            for method, cell in zip(METHODS, cells[2:], strict=True):
                launches, waits = cell.split("/")
                table[cells[0], cells[1], method] = int(launches), int(waits)
    return table


def write_table(table: dict[tuple[str, str, str], tuple[int, int]]) -> None:
    """Write launches and waits by family, input and method."""
    lines = [HEAD, "|" + " --- |" * (2 + len(METHODS))]
    for family in tiny.FAMILIES:
        for inputs in INPUTS:
            cells = [table.get((family, inputs, method)) for method in METHODS]
            if None not in cells:
                texts = [f"{launches} / {waits}" for launches, waits in (cell for cell in cells if cell is not None)]
                lines.append(f"| {family} | {inputs} | {' | '.join(texts)} |")
    TABLE.write_text(INTRODUCTION + "\n".join(lines) + "\n")


def main() -> None:
    """Count, and write the table."""
    table = read_table() if TABLE.exists() else {}
    for family in sys.argv[1:] or tiny.FAMILIES:
        for inputs in INPUTS:
            if inputs == "64 frames" and family not in CLIPS:
                continue
            for method in METHODS:
                counted = count_prefill(family, inputs, method)
                table[family, inputs, method] = counted.launches, counted.waits
            write_table(table)
            print(family, inputs, flush=True)


if __name__ == "__main__":
    main()
