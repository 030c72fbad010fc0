"""Measure whether EADP's relevance maps highlight the things in question, on the pocket world with its known boxes.

    python benchmarks/maps.py            # 2,000 test questions, about two minutes

The settings are the published defaults (μ 0.5, q 0.5, τ and γ 0.01), with each sign of the similarity.
"""

from __future__ import annotations

import statistics

import common
import typer
from rich.console import Console

from eadp.evaluate.maps import measure_pointing
from eadp.utils.tables import format_markdown


def main(samples: int = 2000) -> None:
    """Measure, print, and write benchmarks/results/maps.json and docs/guides/pocket.md."""
    common.use_one_thread()
    found = {sign: measure_pointing(samples, sign=sign) for sign in (1.0, -1.0)}
    rows = [
        [
            "mean relevance inside the boxes / outside, mean over questions (median)",
            *(f"{maps.ratio:.2f} ({statistics.median(maps.ratios):.2f})" for maps in found.values()),
        ],
        [
            "questions whose content words have a lower mean entropy than their function words",
            *(f"{100 * maps.in_order:.1f} %" for maps in found.values()),
        ],
        ["questions", *(str(len(maps.ratios)) for maps in found.values())],
    ]
    table = format_markdown(["pocket figures", "sign +1", "sign −1"], rows)
    Console().print(table)
    common.save(
        "maps",
        {
            "questions": {str(sign): len(maps.ratios) for sign, maps in found.items()},
            "ratio": {str(sign): maps.ratio for sign, maps in found.items()},
            "median": {str(sign): statistics.median(maps.ratios) for sign, maps in found.items()},
            "in_order": {str(sign): maps.in_order for sign, maps in found.items()},
        },
    )
    common.write_into(common.ROOT / "docs" / "guides" / "pocket.md", "maps", table)


if __name__ == "__main__":
    typer.run(main)
