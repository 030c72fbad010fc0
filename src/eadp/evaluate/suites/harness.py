"""The harnesses as processes: how they are started, and how their results are read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eadp.evaluate.scores import read_logged_samples
from eadp.evaluate.suites.suite import Benchmark, HarnessName
from eadp.method_spec import ALL_TOKENS, MethodSpec
from eadp.methods import NoPruning
from eadp.utils.die_with_parent import ANY_PARENT, die_with_parent

Figures = dict[str, dict[str, float]]
"""By task, the figures that the harness reports by their names."""

ResultFiles = dict[Path, int]
"""The files of results that a harness wrote, with the times of their last change."""

MODULES: dict[HarnessName, str] = {"lmms-eval": "lmms_eval", "vlmeval": "vlmeval"}
JUDGE_KEYS = ("OPENAI_API_KEY", "AZURE_API_KEY")
"""If one of these environment variables is set, an online judge is available."""


@dataclass(frozen=True)
class Cell:
    """One benchmark with one setting, run by one harness process.

    Attributes:
        benchmark: The benchmark.
        spec: The setting.
        model: The checkpoint.
        folder: The folder of this cell.
        arguments: Arguments for the model in the harness, apart from method and budget.
        samples: The number of samples per task; None for all.
        batch: The number of prompts per batch.
        ranks: The number of processes that share a task.
        include: A folder of further lmms-eval tasks.
        judge: Whether an online judge reads answers that rules cannot parse.
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
    judge: bool = False

    @property
    def key(self) -> str:
        """The key of the cell in the suite's journal."""
        return f"{self.spec.key}/{self.benchmark.name}"

    @property
    def journal(self) -> Path:
        """The folder of the journal of answers."""
        return self.folder / "journal"

    @property
    def output(self) -> Path:
        """The folder of the harness's own output."""
        return self.folder / "harness"

    def settings(self) -> dict[str, Any]:
        """Return the method, its budget and its options as arguments for the model in the harness."""
        unpruned = self.spec.method == ALL_TOKENS
        budget = {} if self.spec.keep is None else {"keep": self.spec.keep}
        method = NoPruning.name if unpruned else self.spec.method
        return {"method": method, **budget, **self.spec.options, **self.benchmark.script_settings(self.spec)}


def build_command(cell: Cell, python: str) -> list[str]:
    """Build the command line that runs a cell.

    Raises:
        ValueError: If the harness cannot run the cell as it is set up.
    """
    return {"lmms-eval": _lmms_eval_command, "vlmeval": _vlmeval_command}[cell.benchmark.harness](cell, python)


def _lmms_eval_command(cell: Cell, python: str) -> list[str]:
    model_args = {"pretrained": cell.model, **cell.settings(), **cell.arguments, "journal": cell.journal}
    texts = {name: _format_value(value) for name, value in model_args.items()}
    if with_comma := [text for text in texts.values() if "," in text and not text.startswith("[")]:
        raise ValueError(f"lmms-eval allows no commas in the arguments of a model: {', '.join(with_comma)}")
    options = {
        "--model": "eadp",
        "--model_args": ",".join(f"{name}={text}" for name, text in texts.items()),
        "--tasks": ",".join(cell.benchmark.tasks),
        "--batch_size": str(cell.batch),
        "--output_path": str(cell.output),
    }
    if cell.samples is not None:
        options["--limit"] = str(cell.samples)
    if cell.include is not None:
        options["--include_path"] = str(cell.include)
    launch = []
    if cell.ranks > 1:
        # At other verbosities a rank that fails ends with 0, and the other ranks wait for it.
        options["--verbosity"] = "DEBUG"
        launch = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={cell.ranks}"]
        launch += ["--no-python", *die_with_parent(signal.SIGKILL, ANY_PARENT)]
    words = [word for pair in options.items() for word in pair]
    return [*launch, python, "-m", "lmms_eval", "--log_samples", *words]


def _vlmeval_command(cell: Cell, python: str) -> list[str]:
    if cell.ranks > 1 or cell.batch > 1:
        raise ValueError("VLMEvalKit runs in one process, prompt by prompt: leave out --ranks and --batch")
    settings = {**cell.settings(), **cell.arguments}
    options = {
        "--model": cell.model,
        "--data": ",".join(cell.benchmark.tasks),
        "--method": settings.pop("method"),
        "--out": str(cell.output),
        "--journal": str(cell.journal),
    }
    if "keep" in settings:
        options["--keep"] = str(settings.pop("keep"))
    pairs = [*options.items(), *(("--set", f"{name}={_format_value(value)}") for name, value in settings.items())]
    if cell.samples is not None:
        pairs.append(("--limit", str(cell.samples)))
    if not cell.judge:
        pairs.append(("--judge", "exact_matching"))
    return [python, "-m", "eadp", "vlmeval", *(word for pair in pairs for word in pair)]


def has_judge() -> bool:
    """Return whether the environment has a key for an online judge."""
    return any(os.environ.get(name) for name in JUDGE_KEYS)


def list_results(cell: Cell) -> ResultFiles:
    """List the files of results that the harness wrote for a cell, with the times of their last change."""
    name = {"lmms-eval": "*_results.json", "vlmeval": "status.json"}[cell.benchmark.harness]
    return {path: path.stat().st_mtime_ns for path in cell.output.rglob(name)}


def read_figures(cell: Cell) -> Figures:
    """Read the figures from the latest results that the harness wrote for a cell.

    Raises:
        ValueError: If the harness wrote no results or did not score a task.
    """
    return {"lmms-eval": _read_lmms_eval_figures, "vlmeval": _read_vlmeval_figures}[cell.benchmark.harness](cell)


def _read_lmms_eval_figures(cell: Cell) -> Figures:
    results = _read_lmms_eval_results(cell)["results"]
    return {task: _select_numbers(results.get(task, {})) for task in cell.benchmark.tasks}


def _read_lmms_eval_results(cell: Cell) -> dict[str, Any]:
    """Read the latest file of results."""
    written = list_results(cell)
    if not written:
        raise ValueError(f"lmms-eval wrote no results to {cell.output}")
    return json.loads(max(written, key=lambda path: written[path]).read_text("utf-8"))


def _read_vlmeval_figures(cell: Cell) -> Figures:
    written = list(list_results(cell))
    if len(written) != 1:
        raise ValueError(f"VLMEvalKit wrote {len(written)} files named status.json to {cell.output} instead of one")
    data_sets, figures = json.loads(written[0].read_text("utf-8"))["datasets"], {}
    for task in cell.benchmark.tasks:
        status = data_sets.get(task.partition(":")[0], {})
        if problem := status.get("error_message") or status.get("skip_reason"):
            raise ValueError(f"VLMEvalKit did not score {task}: {problem}")
        figures[task] = _select_numbers(status.get("metrics", {}))
    return figures


def read_scored_counts(cell: Cell) -> dict[str, int]:
    """Read how many samples of each task the harness scored. Only lmms-eval writes it; otherwise {}."""
    if cell.benchmark.harness != "lmms-eval":
        return {}
    counts = _read_lmms_eval_results(cell).get("n-samples", {})
    return {task: counts[task]["effective"] for task in cell.benchmark.tasks if task in counts}


def has_logged_samples(cell: Cell) -> bool:
    """Whether the harness logged all samples that it scored, which lmms-eval does after it wrote its results."""
    logged = Counter(task for task, _, _ in read_logged_samples(cell.output))
    return all(logged[task] >= scored for task, scored in read_scored_counts(cell).items())


def read_scores(cell: Cell) -> dict[str, float]:
    """Read the score of each sample by TASK/NUMBER. Only lmms-eval writes them, for most tasks; otherwise {}."""
    if cell.benchmark.harness != "lmms-eval":
        return {}
    metrics = [name.partition(",")[0] for name in cell.benchmark.metrics]
    samples = read_logged_samples(cell.output, metrics)
    scores = {f"{task}/{number}": record["score"] for task, number, record in samples}
    return {key: score for key, score in scores.items() if score is not None}


def _select_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _format_value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | tuple | bool) else str(value)


def build_environment() -> dict[str, str]:
    """Return the environment for the harness. In a checkout, the harness imports this eadp, not an installed one."""
    root = Path(__file__).parents[3]
    if not (root.parent / "pyproject.toml").is_file():
        return dict(os.environ)
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def find_interpreter(harness: HarnessName, given: str | None) -> str:
    """Return the interpreter that runs a harness: the given one, or the current one.

    Raises:
        ValueError: If it does not run, or does not have the harness and eadp.
    """
    python = given or sys.executable
    script = "import sys; from importlib.util import find_spec; print(*(n for n in sys.argv[1:] if not find_spec(n)))"
    command = [python, "-c", script, MODULES[harness], "eadp"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, env=build_environment(), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"{python} is not a working Python interpreter: {error}") from None
    if missing := finished.stdout.split():
        raise ValueError(
            f"{python} does not have {' and '.join(missing)}: run pip install 'eadp[{harness}]' in its environment, or "
            "give the interpreter of an environment that has it with --python"
        )
    return python
