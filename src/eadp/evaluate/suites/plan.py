"""What a run of a suite consists of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eadp import paper
from eadp.evaluate.journal import Record
from eadp.evaluate.suites.harness import Cell
from eadp.evaluate.suites.suite import Benchmark, Suite
from eadp.method_spec import ALL_TOKENS, Budget, MethodSpec, build_specs


@dataclass(frozen=True)
class SuitePlan:
    """What is to be run, into which folder, by which interpreter (None: ours).

    arguments: for the harness's model, besides those of the suite. samples: how many of each task, None: all.
    batch: prompts that are answered together. ranks: processes that share a task.
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

    def cells(self) -> list[Cell]:
        """By benchmark, so that a data set is read for all settings before the next one."""
        return [
            Cell(
                benchmark,
                spec,
                self.model,
                self.out.absolute() / _name(spec.key) / _name(benchmark.name),
                self.given,
                self.samples,
                self.batch,
                self.ranks,
                self.suite.include,
            )
            for benchmark in self.benchmarks
            for spec in self.specs
        ]

    def identity(self) -> Record:
        """What all results of the folder have in common."""
        return {"suite": self.suite.name, "model": self.model, "samples": self.samples, "arguments": self.given}

    @property
    def given(self) -> dict[str, Any]:
        """The suite's, and those given; null takes away one of the suite's."""
        given = {**self.suite.arguments_for(self.model), **self.arguments}
        return {name: value for name, value in given.items() if value is not None}


def plan_specs(
    methods: Sequence[str],
    budgets: Sequence[Budget],
    options: Mapping[str, Mapping[str, Any]],
    model: str,
    beside: paper.PaperTable | None,
) -> list[MethodSpec]:
    """All tokens, then budget by budget every method. No budgets: those of the paper for the model."""
    if not budgets and beside is None:
        raise ValueError(f"the paper has no budgets of {model}: give --keep, or the paper's model with --beside")
    counts: Sequence[Budget] = budgets or sorted({row.keep for row in _pruned(beside)}, reverse=True)
    every = [
        MethodSpec(ALL_TOKENS),
        *(spec for count in dict.fromkeys(counts) for spec in build_specs(methods, [count], options)),
    ]
    return list({spec.key: spec for spec in every}.values())


def paper_of(model: str) -> paper.PaperTable | None:
    """The paper's accuracy table of a model, by its name, its checkpoint's name, or the name of its folder."""
    folder = Path(model).name.lower()
    names = {**{name.rpartition("/")[2]: of for name, of in paper.models().items()}, **paper.models()}
    known = names.get(model.lower(), names.get(folder))
    return next((each for each in paper.tables("accuracy") if each.model == known), None)


def _pruned(table: paper.PaperTable | None) -> list[Any]:
    return [] if table is None else [row for row in table.rows if row.method != ALL_TOKENS and row.keep is not None]


def _name(text: str) -> str:
    """As a folder."""
    return re.sub(r"[^\w.=-]+", "_", text)
