"""The harnesses as processes: how they are started, and where they leave their figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eadp.evaluate.scores import logged
from eadp.evaluate.suites.suite import Benchmark, HarnessName
from eadp.method_spec import ALL_TOKENS, MethodSpec
from eadp.methods import NoPruning

Figures = dict[str, dict[str, float]]
"""By task, what the harness measured by its names for it."""

MODULES: dict[HarnessName, str] = {"lmms-eval": "lmms_eval", "vlmeval": "vlmeval"}
JUDGES = ("OPENAI_API_KEY", "AZURE_API_KEY")
"""One of these in the environment: there is an online judge."""


@dataclass(frozen=True)
class Cell:
    """One benchmark under one setting, and the folder that it has for itself.

    arguments: what the harness's model is given besides method and budget. include: folder of further tasks.
    """

    benchmark: Benchmark
    spec: MethodSpec
    model: str
    folder: Path
    arguments: Mapping[str, Any]
    samples: int | None = None
    batch: int = 1
    ranks: int = 1
    include: Path | None = None

    @property
    def key(self) -> str:
        return f"{self.spec.key}/{self.benchmark.name}"

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def output(self) -> Path:
        return self.folder / "harness"

    def settings(self) -> dict[str, Any]:
        """What is run, in the words of the harnesses' models."""
        everything = self.spec.method == ALL_TOKENS
        budget = {} if self.spec.keep is None else {"keep": self.spec.keep}
        method = NoPruning.name if everything else self.spec.method
        return {"method": method, **budget, **self.spec.options, **self.benchmark.scripted(self.spec)}


def command(cell: Cell, python: str) -> list[str]:
    """The harness in a process of its own."""
    return {"lmms-eval": _lmms_eval, "vlmeval": _vlmeval}[cell.benchmark.harness](cell, python)


def _lmms_eval(cell: Cell, python: str) -> list[str]:
    given = {"pretrained": cell.model, **cell.settings(), **cell.arguments, "journal": cell.journal}
    texts = {name: _text(value) for name, value in given.items()}
    if broken := [text for text in texts.values() if "," in text and not text.startswith("[")]:
        raise ValueError(f"lmms-eval takes no commas in the arguments of a model: {', '.join(broken)}")
    arguments = {
        "--model": "eadp",
        "--model_args": ",".join(f"{name}={text}" for name, text in texts.items()),
        "--tasks": ",".join(cell.benchmark.tasks),
        "--batch_size": str(cell.batch),
        "--output_path": str(cell.output),
    }
    if cell.samples is not None:
        arguments["--limit"] = str(cell.samples)
    if cell.include is not None:
        arguments["--include_path"] = str(cell.include)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={cell.ranks}"] if cell.ranks > 1 else []
    words = [word for pair in arguments.items() for word in pair]
    return [python, *launch, "-m", "lmms_eval", "--log_samples", *words]


def _vlmeval(cell: Cell, python: str) -> list[str]:
    if cell.ranks > 1 or cell.batch > 1:
        raise ValueError("VLMEvalKit is run in one process, prompt by prompt: leave out --ranks and --batch")
    settings = {**cell.settings(), **cell.arguments}
    arguments = {
        "--model": cell.model,
        "--data": ",".join(cell.benchmark.tasks),
        "--method": settings.pop("method"),
        "--out": str(cell.output),
        "--journal": str(cell.journal),
    }
    if "keep" in settings:
        arguments["--keep"] = str(settings.pop("keep"))
    pairs = [*arguments.items(), *(("--set", f"{name}={_text(value)}") for name, value in settings.items())]
    if cell.samples is not None:
        pairs.append(("--limit", str(cell.samples)))
    if not judge():
        pairs.append(("--judge", "exact_matching"))
    return [python, "-m", "eadp", "vlmeval", *(word for pair in pairs for word in pair)]


def judge() -> bool:
    return any(os.environ.get(name) for name in JUDGES)


def figures(cell: Cell) -> Figures:
    """What the harness measured, from the files that it wrote last."""
    return {"lmms-eval": _lmms_eval_figures, "vlmeval": _vlmeval_figures}[cell.benchmark.harness](cell)


def _lmms_eval_figures(cell: Cell) -> Figures:
    written = sorted(cell.output.rglob("*_results.json"), key=lambda path: path.stat().st_mtime_ns)
    if not written:
        raise ValueError(f"lmms-eval wrote no results into {cell.output}")
    results = json.loads(written[-1].read_text("utf-8"))["results"]
    return {task: _numbers(results.get(task, {})) for task in cell.benchmark.tasks}


def _vlmeval_figures(cell: Cell) -> Figures:
    written = list(cell.output.rglob("status.json"))
    if len(written) != 1:
        raise ValueError(f"VLMEvalKit wrote {len(written)} files status.json into {cell.output} instead of one")
    every, found = json.loads(written[0].read_text("utf-8"))["datasets"], {}
    for task in cell.benchmark.tasks:
        state = every.get(task.partition(":")[0], {})
        if said := state.get("error_message") or state.get("skip_reason"):
            raise ValueError(f"VLMEvalKit did not score {task}: {said}")
        found[task] = _numbers(state.get("metrics", {}))
    return found


def scores(cell: Cell) -> dict[str, float]:
    """Each sample's score by TASK/NUMBER, where the harness writes it down: lmms-eval does, for most tasks."""
    if cell.benchmark.harness != "lmms-eval":
        return {}
    metrics = [name.partition(",")[0] for name in cell.benchmark.metrics]
    found = {f"{task}/{number}": record["score"] for task, number, record in logged(cell.output, metrics)}
    return {key: score for key, score in found.items() if score is not None}


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | tuple | bool) else str(value)


def environment() -> dict[str, str]:
    """Ours. From a checkout, the harness's interpreter gets the same eadp, whatever it has installed."""
    root = Path(__file__).parents[3]
    if not (root.parent / "pyproject.toml").is_file():
        return dict(os.environ)
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def interpreter(harness: HarnessName, given: str | None) -> str:
    """The interpreter that has the harness: the one given, or ours."""
    python = given or sys.executable
    look = "import sys; from importlib.util import find_spec; print(*(n for n in sys.argv[1:] if not find_spec(n)))"
    asked = [python, "-c", look, MODULES[harness], "eadp"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, env=environment(), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"{python} is not a Python interpreter that runs: {error}") from None
    if missing := found.stdout.split():
        raise ValueError(
            f"{python} does not have {' and '.join(missing)}: install it there with pip install 'eadp[{harness}]', or "
            "give the interpreter of an environment that has it with --python"
        )
    return python
