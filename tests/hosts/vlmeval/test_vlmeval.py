"""The real VLMEvalKit through `eadp vlmeval` on the pocket model: correctness, and continuing after a kill."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import data
import pandas as pd
import pytest
from kill import kill_after, run
from scenes import Scene, answer_without_harness

from eadp.evaluate import vlmeval
from eadp.evaluate.harness_settings import HarnessSettings

TOTAL = 16
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {"method": "none"},
    "eadp": {"method": "eadp", "keep": 1},
    "published": {"method": "eadp", "preset": "published", "keep": 1, "question": "released"},
    "inside": {"method": "pyramiddrop", "keep": 16, "layers": [8, 16, 24]},
}
COMMAND = ["--data", data.DATA, "--judge", "exact_matching"]


class Work:
    """The folder of one model in a work directory of VLMEvalKit."""

    def __init__(self, out: Path, settings: HarnessSettings) -> None:
        self.name = settings.name
        self.folder = out / self.name

    @property
    def side(self) -> dict[str, Any]:
        (found,) = self.folder.glob("*_eadp.json")
        return json.loads(found.read_text())

    def answers(self, name: str) -> list[str]:
        table = pd.read_excel(self.folder / f"{self.name}_{name}.xlsx", dtype={"prediction": str})
        return table.sort_values("index")["prediction"].tolist()

    @property
    def scores(self) -> list[str]:
        return [
            (self.folder / f"{self.name}_{file}.csv").read_text()
            for file in (f"{data.POPE}_score", f"{data.CHOICE}_acc")
        ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vlmeval")


@pytest.fixture(scope="module")
def scenes_by_data(folder: Path) -> dict[str, list[Scene]]:
    return data.write(folder / "data", TOTAL)


@pytest.fixture(scope="module")
def works(folder: Path, scenes_by_data: dict[str, list[Scene]]) -> dict[str, Work]:
    """All settings, run as the command runs them."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMUData", str(folder / "data"))
        for name, arguments in SETTINGS.items():
            settings = HarnessSettings.from_arguments(pretrained="pocket", **arguments)
            vlmeval.evaluate(data.DATA.split(","), settings, folder / "out", arguments=COMMAND[2:])
            found[name] = Work(folder / "out", settings)
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_answers_equal_those_without_the_harness(
    works: dict[str, Work], scenes_by_data: dict[str, list[Scene]], name: str
) -> None:
    for data_name, scenes in scenes_by_data.items():
        answers, _ = answer_without_harness(scenes, [data.prompt(scene) for scene in scenes], **SETTINGS[name])
        assert works[name].answers(data_name) == answers


def test_pruning_to_one_token_changes_answers(works: dict[str, Work]) -> None:
    """Otherwise the agreement above would prove little."""
    for of in (data.POPE, data.CHOICE):
        assert works["all"].answers(of) != works["eadp"].answers(of)


def test_scores_of_the_harness_are_right(works: dict[str, Work], scenes_by_data: dict[str, list[Scene]]) -> None:
    right = [
        scene.answer == answer
        for scene, answer in zip(scenes_by_data[data.POPE], works["eadp"].answers(data.POPE), strict=True)
    ]
    score = pd.read_csv(works["eadp"].folder / f"{works['eadp'].name}_{data.POPE}_score.csv").iloc[0]
    assert score["acc"] == pytest.approx(100 * sum(right) / TOTAL)


def test_summary_with_settings_tokens_and_times_is_written(works: dict[str, Work]) -> None:
    side = works["inside"].side
    assert side["settings"]["options"] == {"keep": 16, "layers": [8, 16, 24]}
    assert (side["samples"], side["tokens"], side["sent"], side["tokens_before"]) == (2 * TOTAL, 16, 16, 256)
    assert 16 < side["layer_mean"] < 256
    assert side["generate_seconds"] > 0
    assert works["all"].side["tokens"] == 256
    assert works["published"].name == "pocket-eadp-published-keep1-questionreleased"
    assert works["published"].side["settings"]["options"] == {"preset": "published", "keep": 1}


def test_unknown_data_set_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch, works: dict[str, Work]) -> None:
    monkeypatch.setenv("LMUData", str(folder / "data"))
    with pytest.raises(ValueError, match="no data set 'Nothing'"):
        vlmeval.evaluate(["Nothing"], HarnessSettings.from_arguments(pretrained="pocket", keep=5), folder / "none")


@pytest.mark.slow
def test_killed_run_ends_with_the_same_results(folder: Path, works: dict[str, Work]) -> None:
    out = folder / "killed"
    settings = HarnessSettings.from_arguments(pretrained="pocket", **SETTINGS["eadp"])
    work = Work(out, settings)
    eadp = [sys.executable, "-c", "from eadp.cli import app; app()", "vlmeval", "--model", "pocket", "--keep", "1"]
    command, place = [*eadp, "--out", str(out), *COMMAND], {"LMUData": str(folder / "data"), "OMP_NUM_THREADS": "1"}
    killed_after = random.Random(8).randrange(1, 2 * TOTAL)
    kept = kill_after(killed_after, work.folder / "journal", command, folder / "log", **place)
    assert killed_after <= len(kept) < 2 * TOTAL
    run(command, folder / "log", **place)
    assert work.scores == works["eadp"].scores
    assert [work.answers(of) for of in (data.POPE, data.CHOICE)] == [
        works["eadp"].answers(of) for of in (data.POPE, data.CHOICE)
    ]
    assert work.side["answered_now"] == 2 * TOTAL - len(kept)
