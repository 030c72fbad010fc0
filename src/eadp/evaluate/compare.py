"""Whether a difference between two runs is significant: paired on the same samples, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from eadp.evaluate.scores import ScoredRun, runs
from eadp.method_spec import ALL_TOKENS
from eadp.utils.statistics import paired_difference

if TYPE_CHECKING:
    from eadp.evaluate.pocket_benchmark import Outcome


@dataclass(frozen=True)
class Difference:
    """Mean score of a minus that of b over the same samples, with its 95 % interval. Scores up to 1 are in points of
    a hundred."""

    a: str
    b: str
    samples: int
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out 0: significant at 95 %, without a correction for several comparisons."""
        return self.low > 0 or self.high < 0

    @property
    def sentence(self) -> str:
        on = f"on the same {self.samples:,} samples"
        if self.difference == self.low == self.high == 0:
            return f"{self.a} and {self.b} score the same on each of the same {self.samples:,} samples."
        if not self.significant:
            interval = f"{self.low:+.1f} to {self.high:+.1f}"
            return (
                f"{self.a} and {self.b} cannot be told apart {on}: {self.difference:+.1f} points (95 % interval "
                f"{interval}) may be chance."
            )
        better, worse, low, high = self.a, self.b, self.low, self.high
        if self.difference < 0:
            better, worse, low, high = worse, better, -high, -low
        gap = f"{abs(self.difference):.1f} points above {worse} {on} (95 % interval {low:.1f} to {high:.1f})"
        return f"{better} is {gap}: significant at 95 %, uncorrected."


def difference(a: ScoredRun, b: ScoredRun, common: bool = False) -> Difference:
    """Compare two runs. common: on the samples that both have, instead of refusing where one has others."""
    shared = [sample for sample in a.scores if sample in b.scores and _same(a.asked[sample], b.asked[sample])]
    if not shared or (not common and not len(shared) == len(a.scores) == len(b.scores)):
        raise ValueError(
            f"{a.name} has {len(a.scores):,} samples and {b.name} {len(b.scores):,}, of which {len(shared):,} match: "
            "a paired comparison needs the same samples. Finish the shorter run, or compare what both have (--common)"
        )
    return paired(a.name, b.name, [a.scores[sample] for sample in shared], [b.scores[sample] for sample in shared])


def paired(name_a: str, name_b: str, a: Sequence[float], b: Sequence[float]) -> Difference:
    """Two lists of scores, sample by sample."""
    by = scale([*a, *b])
    found = [by * figure for figure in paired_difference(a, b)]
    return Difference(name_a, name_b, len(a), by * sum(a) / len(a), by * sum(b) / len(b), *found)


def scale(scores: Iterable[float]) -> int:
    """Shares are told in points of a hundred, other scores as they are."""
    return 100 if all(0 <= score <= 1 for score in scores) else 1


def against(outcomes: Iterable[Outcome], method: str = "eadp") -> list[Difference]:
    """The method at each budget against all tokens and against every other setting at that budget, each pair once."""
    every = list(outcomes)
    found, done = [], []
    for ours in (outcome for outcome in every if outcome.spec.method == method):
        done.append(ours)
        there = [o for o in every if not any(o is each for each in done)]
        others = [o for o in there if o.spec.method == ALL_TOKENS or o.spec.keep == ours.spec.keep]
        found += [paired(str(ours.spec), str(other.spec), ours.right, other.right) for other in others]
    return found


def pairs(a: str, b: str) -> list[tuple[ScoredRun, ScoredRun]]:
    """What `eadp compare A B` compares. A and B are SOURCE or SOURCE:WORDS; B may be :WORDS, of the same source.

    Words choose the runs that have them all in their names: "eadp keep=0.125", "topk". One run on each side is a pair;
    of several, those that are called the same but for the words: eadp and topk at each budget, two methods on each
    benchmark.
    """
    source_a, words_a = _split(a)
    source_b, words_b = _split(b) if not b.startswith(":") else (source_a, b[1:])
    found_a, found_b = _chosen(source_a, words_a), _chosen(source_b, words_b)
    if len(found_a) == len(found_b) == 1:
        found = list(zip(found_a.values(), found_b.values(), strict=True))
    else:
        found = [(run, found_b[rest]) for rest, run in found_a.items() if rest in found_b]
    if not found:
        names_a, names_b = (", ".join(run.name for run in each.values()) for each in (found_a, found_b))
        raise ValueError(f"no pair among {names_a} of {a} and {names_b} of {b}: name one of each, as in SOURCE:NAME")
    if source_a == source_b:
        return found
    return [(_of(source_a, run_a), _of(source_b, run_b)) for run_a, run_b in found]


def _split(text: str) -> tuple[Path, str]:
    source, _, words = (text, "", "") if Path(text).exists() else text.partition(":")
    return Path(source), words


def _chosen(source: Path, wanted: str) -> dict[str, ScoredRun]:
    """The runs of a source that have all the words in their names, by what else is in them."""
    every, words = runs(source), set(wanted.split())
    found = {
        " ".join(word for word in name.split() if word not in words): run
        for name, run in every.items()
        if words <= set(name.split())
    }
    if not found:
        raise ValueError(f"{source} has no run {wanted!r}; it has: {', '.join(every)}")
    return found


def _of(source: Path, run: ScoredRun) -> ScoredRun:
    """With its source in its name."""
    return replace(run, name=f"{source}:{run.name}" if run.name else str(source))


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[field] == b[field] for field in a.keys() & b.keys())


def as_table(differences: Sequence[Difference]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption="significant: at 95 %, uncorrected")
    for column in ("A", "B"):
        table.add_column(column)
    for column in ("samples", "mean A", "mean B", "A − B", "95 % interval", "significant"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in differences:
        means = [f"{each.samples:,}", f"{each.mean_a:.1f}", f"{each.mean_b:.1f}", f"{each.difference:+.1f}"]
        table.add_row(
            each.a, each.b, *means, f"{each.low:+.1f} to {each.high:+.1f}", "yes" if each.significant else "no"
        )
    return table
