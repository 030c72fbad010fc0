"""Paired comparison of two runs on the same samples, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from eadp.evaluate.scores import ScoredRun, load_runs
from eadp.method_spec import ALL_TOKENS
from eadp.utils.statistics import paired_difference

if TYPE_CHECKING:
    from eadp.evaluate.pocket_benchmark import Outcome


@dataclass(frozen=True)
class Difference:
    """The difference of two mean scores over the same samples.

    Scores between 0 and 1 are given in percent.

    Attributes:
        a: The name of the first run.
        b: The name of the second run.
        samples: The number of samples.
        mean_a: The mean score of a.
        mean_b: The mean score of b.
        difference: `mean_a - mean_b`.
        low: The lower end of the 95 % interval of the difference.
        high: The upper end of the 95 % interval of the difference.
    """

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
        """Whether the interval excludes 0: significant at 95 %, without a correction for several comparisons."""
        return self.low > 0 or self.high < 0

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
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


def compare_runs(a: ScoredRun, b: ScoredRun, common: bool = False) -> Difference:
    """Compare the scores of two runs, sample by sample.

    Args:
        a: The first run.
        b: The second run.
        common: Compare the samples that both runs have. Otherwise both must have the same samples.

    Raises:
        ValueError: If the runs do not have the same samples, or none in common.
    """
    shared = [s for s in a.scores if s in b.scores and _same_question(a.questions[s], b.questions[s])]
    if not shared or (not common and not len(shared) == len(a.scores) == len(b.scores)):
        raise ValueError(
            f"{a.name} has {len(a.scores):,} samples and {b.name} {len(b.scores):,}, of which {len(shared):,} match: "
            "a paired comparison needs the same samples. Finish the shorter run, or compare those that both have with "
            "--common"
        )
    return compare_scores(a.name, b.name, [a.scores[s] for s in shared], [b.scores[s] for s in shared])


def compare_scores(name_a: str, name_b: str, a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare two lists of scores of the same samples, in the same order."""
    scale = percent_scale([*a, *b])
    difference, low, high = (scale * value for value in paired_difference(a, b))
    return Difference(name_a, name_b, len(a), scale * sum(a) / len(a), scale * sum(b) / len(b), difference, low, high)


def percent_scale(scores: Iterable[float]) -> int:
    """Return 100 if all scores lie between 0 and 1, so that they are shown in percent, and 1 otherwise."""
    return 100 if all(0 <= score <= 1 for score in scores) else 1


def compare_with_others(outcomes: Iterable[Outcome], method: str = "eadp") -> list[Difference]:
    """Compare a method with all tokens and, at each budget, with every other setting. Each pair occurs once."""
    every = list(outcomes)
    differences, compared = [], []
    for ours in (outcome for outcome in every if outcome.spec.method == method):
        compared.append(ours)
        remaining = [o for o in every if not any(o is each for each in compared)]
        others = [o for o in remaining if o.spec.method == ALL_TOKENS or o.spec.keep == ours.spec.keep]
        differences += [compare_scores(str(ours.spec), str(o.spec), ours.right, o.right) for o in others]
    return differences


def find_pairs(a: str, b: str) -> list[tuple[ScoredRun, ScoredRun]]:
    """Find the pairs of runs that `eadp compare A B` compares.

    Words select the runs that have all of them in their names: "eadp keep=0.125", "topk". If each side has one run,
    they are the pair. Otherwise runs are paired whose names are equal apart from the words, for example "eadp" and
    "topk" at each budget, or two methods on each benchmark.

    Args:
        a: SOURCE or SOURCE:WORDS. A source is whatever `load_runs` reads.
        b: The same; or :WORDS for runs of the same source.

    Raises:
        ValueError: If a source has no such run, or no run of a has a partner in b.
    """
    source_a, words_a = _split_source(a)
    source_b, words_b = _split_source(b) if not b.startswith(":") else (source_a, b[1:])
    runs_a, runs_b = _select_runs(source_a, words_a), _select_runs(source_b, words_b)
    if len(runs_a) == len(runs_b) == 1:
        pairs = list(zip(runs_a.values(), runs_b.values(), strict=True))
    else:
        pairs = [(run, runs_b[other_words]) for other_words, run in runs_a.items() if other_words in runs_b]
    if not pairs:
        names_a, names_b = (", ".join(run.name for run in runs.values()) for runs in (runs_a, runs_b))
        raise ValueError(
            f"no pair among {names_a} of {a} and {names_b} of {b}: select one run of each, as in SOURCE:NAME"
        )
    if source_a == source_b:
        return pairs
    return [(_name_source(source_a, run_a), _name_source(source_b, run_b)) for run_a, run_b in pairs]


def _split_source(text: str) -> tuple[Path, str]:
    source, _, words = (text, "", "") if Path(text).exists() else text.partition(":")
    return Path(source), words


def _select_runs(source: Path, text: str) -> dict[str, ScoredRun]:
    """Select the runs that have all words of the text in their names, by the other words of their names."""
    every, words = load_runs(source), set(text.split())
    selected = {
        " ".join(word for word in name.split() if word not in words): run
        for name, run in every.items()
        if words <= set(name.split())
    }
    if not selected:
        raise ValueError(f"{source} has no run {text!r}; it has: {', '.join(every)}")
    return selected


def _name_source(source: Path, run: ScoredRun) -> ScoredRun:
    """Add the source to the name of a run."""
    return replace(run, name=f"{source}:{run.name}" if run.name else str(source))


def _same_question(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[field] == b[field] for field in a.keys() & b.keys())


def as_table(differences: Sequence[Difference]) -> Table:
    """Build the table that `eadp compare` prints, with one row per difference."""
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
