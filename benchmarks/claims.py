"""Test the paper's claims on scenes whose things are known, by where words point and which tokens stay.

    python benchmarks/claims.py                   # 1,500 test questions, about 20 minutes on one idle core
    python benchmarks/claims.py --samples 60      # fewer drawn scenes
    python benchmarks/claims.py --split validation

The models are `things` and `photo`. Their language models answer nothing here. The photographs are those of three
packages; what is missing is named, with how to get it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import common
import typer
from rich.console import Console
from rich.progress import track

from eadp.evaluate import photo_claims
from eadp.evaluate.claims import CLAIMS, Asked, Claim, Comparison, ask, compare, entropies, measure
from eadp.evaluate.photo_data import STAMPS, PhotoData
from eadp.loading import load_model
from eadp.pocket.names import PHOTO, THINGS
from eadp.pocket.things import Split, samples
from eadp.utils.tables import format_markdown

PAGE = common.ROOT / "docs" / "claims.md"
GROUPS = {"all": (False, True), "short": (False,), "dense": (True,)}
"""Groups of questions, by whether they are dense."""


def main(samples_: int = typer.Option(1500, "--samples"), split: str = "test", stamps: Path = STAMPS) -> None:
    """Measure, print, and write benchmarks/results/claims.json and docs/claims.md."""
    common.use_one_thread()
    photographs = PhotoData.find(stamps)
    model, processor = load_model(THINGS)
    drawn = Results(
        ask(model, processor, track(samples(as_split(split), samples_), "questions about scenes", total=samples_))
    )
    model, _ = load_model(PHOTO)
    asked = photo_claims.ask(model.model.vision_tower, model.model.multi_modal_projector, photographs)
    photos = Results(track(asked, "questions about photographs"))
    table, words = claims_table(drawn, photos), words_table({"scenes": drawn, "photographs": photos})
    Console(width=200).print(table, words, sep="\n\n")
    measured = {"things": drawn.as_json() | {"split": split, "samples": samples_}, "photographs": photos.as_json()}
    common.save("claims", measured)
    common.write_into(PAGE, "claims", table)
    common.write_into(PAGE, "words", words)


def as_split(name: str) -> Split:
    """Return a split by its name."""
    splits: dict[str, Split] = {"train": "train", "validation": "validation", "test": "test"}
    return splits[name]


class Results:
    """What was measured, question by question."""

    def __init__(self, questions: Iterable[Asked]) -> None:
        self.values: dict[tuple[str, int, str], dict[int, float]] = defaultdict(dict)
        self.scenes: list[int] = []
        self.dense: list[bool] = []
        self.entropies: dict[int, tuple[float, float]] = {}
        for asked in questions:
            self.add(asked)

    def add(self, asked: Asked) -> None:
        """Measure a question with the settings of all claims."""
        number = len(self.scenes)
        self.scenes.append(asked.scene)
        self.dense.append(asked.dense)
        if (spread := entropies(asked)) is not None:
            self.entropies[number] = spread
        budgets: dict[str, tuple[dict[str, Any], set[int]]] = {}
        for claim in CLAIMS:
            for settings in (claim.better, claim.worse):
                budgets.setdefault(key(settings), (settings, set()))[1].update(claim.keep)
        for name, (settings, keeps) in budgets.items():
            for keep in keeps:
                for what, value in measure(asked, settings, keep).items():
                    self.values[name, keep, what][number] = value

    def compare(self, claim: Claim, keep: int, group: str) -> Comparison:
        """Compare the two sides of a claim on a group of questions."""
        sides = [self.values[key(settings), keep, claim.measure] for settings in (claim.better, claim.worse)]
        numbers = [number for number in sides[0] if self.dense[number] in GROUPS[group]]
        better, worse = ([side[number] for number in numbers] for side in sides)
        return compare(better, worse, [self.scenes[number] for number in numbers])

    def as_json(self) -> dict[str, Any]:
        """All comparisons, as JSON."""
        return {
            "claims": [
                {
                    "claim": claim.text,
                    "measure": claim.measure,
                    "keep": keep,
                    "group": group,
                    "better": (found := self.compare(claim, keep, group)).better,
                    "worse": found.worse,
                    "difference": found.difference,
                    "interval": found.interval,
                    "questions": found.questions,
                    "verdict": found.verdict,
                }
                for claim in CLAIMS
                for keep in claim.keep
                for group in GROUPS
            ]
        }


def claims_table(drawn: Results, photographs: Results) -> str:
    """The claims with their figures, as Markdown."""
    rows = []
    for claim in CLAIMS:
        for keep in claim.keep:
            found = {group: drawn.compare(claim, keep, group) for group in GROUPS}
            overall, on_photos = found["all"], photographs.compare(claim, keep, "all")
            budget = "" if len(claim.keep) == 1 else f", {keep} tokens"
            rows.append(
                [
                    f"{claim.text}{budget}",
                    claim.measure,
                    f"{100 * overall.better:.1f} against {100 * overall.worse:.1f}",
                    *(with_interval(each) for each in found.values()),
                    overall.verdict,
                    with_interval(on_photos),
                    on_photos.verdict,
                ]
            )
    head = ["claim", "measure", "figures", "difference", "short", "dense", "verdict", "photographs", "verdict there"]
    return format_markdown(head, rows)


def words_table(results: dict[str, Results]) -> str:
    """The entropies of words, as Markdown."""
    rows = []
    for title, measured in results.items():
        for group, dense in GROUPS.items():
            pairs = {n: pair for n, pair in measured.entropies.items() if measured.dense[n] in dense}
            named, others = ([pair[side] for pair in pairs.values()] for side in (0, 1))
            found = compare(others, named, [measured.scenes[number] for number in pairs])
            ordered = sum(name < other for name, other in pairs.values()) / len(pairs)
            low, high = found.interval
            rows.append(
                [
                    f"{title}, {group}",
                    str(len(pairs)),
                    f"{found.worse:.2f}",
                    f"{found.better:.2f}",
                    f"{found.difference:.2f} ({low:.2f} to {high:.2f})",
                    f"{100 * ordered:.0f} %",
                ]
            )
    headings = ["questions", "number", "names of things", "other words", "difference", "names are lower"]
    return format_markdown(headings, rows)


def key(settings: dict[str, Any]) -> str:
    """A name for settings of EADP."""
    return ",".join(f"{name}={value}" for name, value in sorted(settings.items()))


def with_interval(found: Comparison) -> str:
    """A difference in points with its interval."""
    low, high = found.interval
    return f"{100 * found.difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


if __name__ == "__main__":
    typer.run(main)
