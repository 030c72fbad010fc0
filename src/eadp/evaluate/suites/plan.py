"""The plan of a suite's run: which benchmarks with which settings, and where the results go."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eadp import paper
from eadp.evaluate.journal import Record
from eadp.evaluate.suites.harness import Cell, has_judge
from eadp.evaluate.suites.suite import Benchmark, HarnessName, Suite
from eadp.method_spec import ALL_TOKENS, Budget, MethodSpec, build_specs


@dataclass(frozen=True)
class SuitePlan:
    """A suite's run.

    Attributes:
        suite: The suite.
        model: The checkpoint.
        specs: The settings.
        benchmarks: The benchmarks of the suite that are run.
        out: The folder for the results.
        python: The interpreter that runs the harness; None for the current one.
        arguments: Arguments for the model in the harness. They override those of the suite; None removes one.
        samples: The number of samples per task; None for all.
        batch: The number of prompts per batch.
        ranks: The number of processes that share a task.
        judge: Whether an online judge reads answers that rules cannot parse; by default, if its key is set.
        node_pythons: By the name or address of a node of a cluster, its own interpreter instead of `python`.
    """

    suite: Suite
    model: str
    specs: Sequence[MethodSpec]
    benchmarks: Sequence[Benchmark]
    out: Path
    python: str | None
    arguments: dict[str, Any]
    samples: int | None = None
    batch: int = 1
    ranks: int = 1
    judge: bool = field(default_factory=has_judge)
    node_pythons: Mapping[str, str] = field(default_factory=dict)

    def cells(self) -> list[Cell]:
        """Return one cell per benchmark and setting, ordered by benchmark so that each data set is read in a row."""
        return [
            Cell(
                benchmark,
                spec,
                self.model,
                self.out.absolute() / _folder_name(spec.key) / _folder_name(benchmark.name),
                self.model_arguments,
                self.samples,
                self.batch,
                self.ranks,
                self.suite.include,
                self.judge,
            )
            for benchmark in self.benchmarks
            for spec in self.specs
        ]

    def journal_settings(self) -> Record:
        """Return what all results in the folder have in common."""
        return {
            "suite": self.suite.name,
            "model": self.model,
            "samples": self.samples,
            "arguments": self.model_arguments,
        }

    @property
    def harnesses(self) -> set[HarnessName]:
        """The harnesses that the benchmarks need."""
        return {benchmark.harness for benchmark in self.benchmarks}

    @property
    def model_arguments(self) -> dict[str, Any]:
        """The suite's arguments for the model in the harness, with `arguments` applied."""
        merged = {**self.suite.arguments_for(self.model), **self.arguments}
        return {name: value for name, value in merged.items() if value is not None}


def plan_specs(
    methods: Sequence[str],
    budgets: Sequence[Budget],
    options: Mapping[str, Mapping[str, Any]],
    model: str,
    paper_table: paper.PaperTable | None,
) -> list[MethodSpec]:
    """Return the settings of a suite's run: all tokens, then every method at each budget.

    Args:
        methods: As a user writes them: "eadp" or "eadp:published".
        budgets: Counts or shares; without any, those in the paper's table.
        options: Options by method; "" for options of all methods.
        model: The checkpoint, for error messages.
        paper_table: The paper's table of the model, if there is one.

    Raises:
        ValueError: If there are no budgets, or a method, an option or a value is unknown.
    """
    if not budgets and paper_table is None:
        raise ValueError(f"the paper has no budgets for {model}: give --keep, or a model of the paper with --beside")
    counts: Sequence[Budget] = budgets or sorted({row.keep for row in _pruned_rows(paper_table)}, reverse=True)
    every = [
        MethodSpec(ALL_TOKENS),
        *(spec for count in dict.fromkeys(counts) for spec in build_specs(methods, [count], options)),
    ]
    return list({spec.key: spec for spec in every}.values())


def find_paper_table(model: str) -> paper.PaperTable | None:
    """Find the paper's accuracy table of a model by the model's name, its checkpoint's name, or its folder's name."""
    folder = Path(model).name.lower()
    names = {**{name.rpartition("/")[2]: known for name, known in paper.models().items()}, **paper.models()}
    found = names.get(model.lower(), names.get(folder))
    return next((each for each in paper.tables("accuracy") if each.model == found), None)


def _pruned_rows(table: paper.PaperTable | None) -> list[Any]:
    return [] if table is None else [row for row in table.rows if row.method != ALL_TOKENS and row.keep is not None]


def _folder_name(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", text)
