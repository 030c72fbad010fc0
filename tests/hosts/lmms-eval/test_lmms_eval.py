"""The real lmms-eval with our plugin on the pocket model: correctness, several ranks, continuing after a kill."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tasks
import yaml
from kill import kill_after, run
from scenes import answer_without_harness

from eadp.evaluate.journal import Journal
from eadp.evaluate.lmms import Eadp

TOTAL = 16
NAMES = (tasks.POPE, tasks.CHOICE)
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {"method": "none"},
    "eadp": {"method": "eadp", "keep": 3},
    "published": {"method": "eadp:published", "keep": 3, "question": "released", "positions": "keep"},
    "share": {"method": "eadp", "keep": 0.0625, "mu": 0.2, "allocation": "uniform"},
    "inside": {"method": "pyramiddrop", "keep": 16, "layers": [8, 16, 24]},
}


@dataclass(frozen=True)
class Run:
    """What lmms-eval wrote to a folder: its results, its samples by task and number, and our summary."""

    folder: Path

    def one(self, pattern: str) -> Path:
        (found,) = self.folder.rglob(pattern)
        return found

    @property
    def results(self) -> dict[str, Any]:
        return json.loads(self.one("*_results.json").read_text())["results"]

    @property
    def side(self) -> dict[str, Any]:
        return json.loads(self.one("*_eadp.json").read_text())

    def answers(self, task: str) -> list[str]:
        lines = self.one(f"*_samples_{task}.jsonl").read_text().splitlines()
        said = {each["doc_id"]: each["filtered_resps"] for each in map(json.loads, lines)}
        return [said[number].strip() for number in range(TOTAL)]

    def tokens(self, task: str) -> list[int]:
        lines = map(json.loads, self.one("*_eadp_samples.jsonl").read_text().splitlines())
        used = {int(each["key"].split("/")[2]): each["tokens"] for each in lines if each["task"] == task}
        return [used[number] for number in range(TOTAL)]


class Harness:
    """lmms-eval's command on the local tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scenes_by_task = tasks.write(folder / "tasks", TOTAL)

    def arguments(self, name: str, batch: int = 8, **model_args: Any) -> dict[str, Any]:
        return {
            "model": "eadp",
            "model_args": ",".join(f"{key}={value}" for key, value in {"pretrained": "pocket", **model_args}.items()),
            "tasks": ",".join(NAMES),
            "include_path": str(self.folder / "tasks"),
            "batch_size": batch,
            "output_path": str(self.folder / name),
            "log_samples": True,
            "verbosity": "DEBUG",
        }

    def command(self, runs: Sequence[dict[str, Any]], ranks: int = 1) -> list[str]:
        config = self.folder / "config.yaml"
        config.write_text(yaml.safe_dump(list(runs)))
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
        return [sys.executable, *launch, "-m", "lmms_eval", "--config", str(config)]

    @property
    def place(self) -> dict[str, Any]:
        """The log file and the environment variables of a command."""
        return {"log": self.folder / "log", "HF_HOME": str(self.folder / "hub"), "OMP_NUM_THREADS": "1"}

    def run(self, runs: Sequence[dict[str, Any]], ranks: int = 1) -> None:
        run(self.command(runs, ranks), **self.place)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    return Harness(tmp_path_factory.mktemp("harness"))


@pytest.fixture(scope="module")
def runs(harness: Harness) -> dict[str, Run]:
    """All settings, run by one command."""
    harness.run([harness.arguments(name, **settings) for name, settings in SETTINGS.items()])
    return {name: Run(harness.folder / name) for name in SETTINGS}


@pytest.mark.parametrize("name", SETTINGS)
def test_answers_equal_those_without_the_harness(harness: Harness, runs: dict[str, Run], name: str) -> None:
    for task, scenes in harness.scenes_by_task.items():
        answers, tokens = answer_without_harness(scenes, [tasks.prompt(scene) for scene in scenes], **SETTINGS[name])
        assert runs[name].answers(task) == answers
        assert runs[name].tokens(task) == tokens


def test_pruning_to_three_tokens_changes_answers_and_scores(runs: dict[str, Run]) -> None:
    """Otherwise the agreement above would prove little."""
    assert runs["all"].answers(tasks.CHOICE) != runs["eadp"].answers(tasks.CHOICE)
    scores = {name: run.results[tasks.CHOICE]["choice_accuracy,none"] for name, run in runs.items()}
    assert scores["eadp"] < scores["all"]
    assert scores["all"] > 0.8


def test_scores_of_the_harness_are_right(harness: Harness, runs: dict[str, Run]) -> None:
    right = [
        scene.answer == answer
        for scene, answer in zip(harness.scenes_by_task[tasks.POPE], runs["eadp"].answers(tasks.POPE), strict=True)
    ]
    assert runs["eadp"].results[tasks.POPE]["pope_accuracy,none"] == pytest.approx(sum(right) / TOTAL)


def test_summary_with_settings_tokens_and_times_is_written(runs: dict[str, Run]) -> None:
    side = runs["inside"].side
    assert side["settings"]["method"] == "pyramiddrop"
    assert side["settings"]["options"] == {"keep": 16, "layers": [8, 16, 24]}
    assert (side["samples"], side["tokens"], side["sent"], side["tokens_before"]) == (2 * TOTAL, 16, 16, 256)
    assert 16 < side["layer_mean"] < 256
    assert side["generate_seconds"] > 0
    assert {task: found["samples"] for task, found in side["tasks"].items()} == dict.fromkeys(sorted(NAMES), TOTAL)
    assert runs["all"].side["tokens"] == 256
    published = runs["published"].side["settings"]
    assert (published["method"], published["options"]["preset"]) == ("eadp", "published")
    assert published["question"] == "released"


@pytest.mark.slow
def test_two_ranks_give_the_same_results_as_one(harness: Harness, runs: dict[str, Run]) -> None:
    harness.run([harness.arguments("ranks", **SETTINGS["eadp"], journal=harness.folder / "two")], ranks=2)
    both = Run(harness.folder / "ranks")
    assert both.results == runs["eadp"].results
    for task in NAMES:
        assert both.answers(task) == runs["eadp"].answers(task)
        assert both.tokens(task) == runs["eadp"].tokens(task)
    assert both.side["answered_now"] == 2 * TOTAL
    shares = [
        len((harness.folder / "two" / name).read_text().splitlines()) for name in ("samples.jsonl", "samples-1.jsonl")
    ]
    assert shares == [TOTAL, TOTAL]


@pytest.mark.slow
def test_killed_runs_end_with_the_same_results(harness: Harness, runs: dict[str, Run]) -> None:
    journal = harness.folder / "killed-journal"
    arguments = harness.arguments("killed", batch=1, **SETTINGS["eadp"], journal=journal)
    chance, kept = random.Random(8), []
    for _ in range(2):
        before = len(kept)
        kept = kill_after(
            before + chance.randrange(1, TOTAL // 2), journal, harness.command([arguments]), **harness.place
        )
        assert before < len(kept) < 2 * TOTAL
    assert not list((harness.folder / "killed").rglob("*_results.json"))
    harness.run([arguments])
    resumed = Run(harness.folder / "killed")
    assert resumed.results == runs["eadp"].results
    assert [resumed.answers(task) for task in NAMES] == [runs["eadp"].answers(task) for task in NAMES]
    assert resumed.side["answered_now"] == 2 * TOTAL - len(kept)
    assert Journal.read(journal)[1][: len(kept)] == kept


@pytest.mark.parametrize("kind", ["loglikelihood", "generate_until_multi_round"])
def test_unsupported_kinds_of_tasks_are_errors(kind: str) -> None:
    with pytest.raises(NotImplementedError, match="output_type generate_until"):
        getattr(Eadp.__new__(Eadp), kind)([])
