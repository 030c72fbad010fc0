"""Measure what the tower and the guide for photographs can do, on photographs that nobody trained on.

    python benchmarks/photo.py --stamps /usr/share/tuxpaint/stamps      # three minutes of CPU time

It needs the model `photo` and the photographs of three packages, and says how to get what is missing. What the language
model answers is measured by `eadp eval photo`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import common
import typer
from rich.console import Console

from eadp import pocket
from eadp.evaluate.photo_benchmark import MAPS, MapResult, NamedPhoto, run
from eadp.evaluate.photo_data import STAMPS, PhotoData
from eadp.pocket.names import PHOTO
from eadp.utils.statistics import mean_interval
from eadp.utils.tables import format_markdown

PAGE = common.ROOT / "docs" / "guides" / "photographs.md"


def main(stamps: Path = STAMPS) -> None:
    """Measure, print, and write benchmarks/results/photo.json and docs/guides/photographs.md."""
    common.use_one_thread()
    data = PhotoData.find(stamps)
    model, _ = pocket.load(PHOTO)
    named, maps = run(model.model.vision_tower, model.model.multi_modal_projector, data)
    tables = {"naming": naming_table(named), "maps": maps_table(maps)}
    for name, table in tables.items():
        Console().print(table)
        common.write_into(PAGE, name, table)
    common.save("photo", {"naming": [asdict(each) for each in named], "maps": [asdict(each) for each in maps]})


def naming_table(named: list[NamedPhoto]) -> str:
    """The share of right names by source and size, with intervals."""
    columns = list(dict.fromkeys((each.side, each.has_views) for each in named))
    rows = []
    for source in (*dict.fromkeys(each.source for each in named), None):
        row = []
        for column in columns:
            chosen = [each for each in named if (each.side, each.has_views) == column]
            right = [float(each.is_right) for each in chosen if source in (each.source, None)]
            row.append(f"{sum(right):.0f} of {len(right)}: {with_interval(right)}")
        rows.append([source or "all", *row])
    head = [f"at {side} pixels{', with views' if has_views else ''}" for side, has_views in columns]
    return format_markdown(["named right", *head], rows)


def maps_table(maps: list[MapResult]) -> str:
    """The mean AUC of each map by ground and kind of word, with intervals."""
    rows = []
    for is_general, words in ((False, "the caption's word"), (True, "a wider word")):
        for ground in dict.fromkeys(each.ground for each in maps):
            chosen = [each for each in maps if each.ground == ground and each.is_general == is_general]
            rows.append(
                [
                    f"{words}, on {ground}",
                    str(len(chosen)),
                    *(with_interval([each.auc[name] for each in chosen]) for name in MAPS),
                    with_interval([each.area for each in chosen]),
                    with_interval([each.kept for each in chosen]),
                ]
            )
    return format_markdown(["AUC", "scenes", *MAPS, "cells on the thing", "kept tokens on the thing"], rows)


def with_interval(scores: Iterable[float]) -> str:
    """A mean with its 95 % interval."""
    values = list(scores)
    low, high = mean_interval(values)
    return f"{sum(values) / len(values):.2f} ({low:.2f}–{high:.2f})"


if __name__ == "__main__":
    typer.run(main)
