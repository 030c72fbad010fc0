"""Videos with every family that accepts them, without a harness and in the real lmms-eval."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import clips
import datasets
import pytest
from kill import run

from eadp.evaluate.harness_settings import HarnessSettings
from eadp.evaluate.pruned_model import PrunedModel

TOKENS = {"qwen2_5_vl": 32, "qwen3_vl": 32, "llava_onevision": 16, "llava_video": 9, "llava_next_video": 4}
"""Tokens per frame in the tiny models."""

FUNCTIONS = """
def visual(doc):
    return [doc["clip"]]


def text(doc, lmms_eval_specific_kwargs=None):
    return doc["question"]


def results(doc, results):
    return {"length": len(results[0])}
"""

TASK = """
task: films
dataset_path: parquet
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_visual: !function utils.visual
doc_to_text: !function utils.text
doc_to_target: question
process_results: !function utils.results
generation_kwargs:
  max_new_tokens: 3
metric_list:
  - metric: length
    aggregation: mean
    higher_is_better: true
"""


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clips.film(tmp_path_factory.mktemp("films") / "noise.mp4")


@pytest.mark.parametrize("name", TOKENS)
def test_every_family_gets_the_number_of_frames(tmp_path: Path, film: Path, name: str) -> None:
    folder = clips.save("llava_onevision" if name == "llava_video" else name, tmp_path / name)
    settings = {"pretrained": str(folder), "method": "divprune", "keep": 6, "newlines": "none"}
    settings["llava_video"] = name == "llava_video"
    part = {"type": "video", "video": str(film)}
    conversations = [
        [{"role": "user", "content": [part, {"type": "text", "text": question}]}] for question in ("what?", "and?")
    ]
    for frames in (4, 8, 64):
        answers = PrunedModel(HarnessSettings.from_arguments(**settings, frames=frames)).answer(
            conversations, {"max_new_tokens": 2}
        )
        seen = min(frames, 24)  # the video has 24 frames
        assert [(each.tokens, each.sent) for each in answers] == [(6, 6)] * 2
        assert [each.tokens_before for each in answers] == [seen * TOKENS[name]] * 2


@pytest.mark.slow
def test_part_of_a_video_can_be_selected(tmp_path: Path, film: Path) -> None:
    folder = clips.save("llava_onevision", tmp_path / "model")
    model = PrunedModel(HarnessSettings.from_arguments(pretrained=str(folder), method="none", frames=64))
    part = {"type": "video", "video": str(film), "start": 1.0, "end": 2.0}
    answer = model.answer([[{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]], {"max_new_tokens": 1})
    # Five frames from second 1 to 2 at four per second, and the newline after the video, which is a placeholder too.
    assert answer[0].tokens == 5 * TOKENS["llava_onevision"] + 1


def test_lmms_eval_evaluates_a_pruned_model_on_videos(tmp_path: Path, film: Path) -> None:
    folder = clips.save("qwen3_vl", tmp_path / "model")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "utils.py").write_text(FUNCTIONS)
    rows = [{"clip": str(film), "question": question} for question in ("what moves?", "where to?", "why?")]
    datasets.Dataset.from_list(rows).to_parquet(tasks / "films.parquet")
    (tasks / "films.yaml").write_text(TASK.format(data=tasks / "films.parquet"))
    arguments = {
        "--model": "eadp",
        "--model_args": f"pretrained={folder},method=eadp,keep=12,frames=8,allocation=uniform",
        "--tasks": "films",
        "--include_path": str(tasks),
        "--batch_size": "2",
        "--output_path": str(tmp_path / "out"),
        "--verbosity": "DEBUG",
    }
    command = [sys.executable, "-m", "lmms_eval", *(word for pair in arguments.items() for word in pair)]
    run(command, tmp_path / "log", HF_HOME=str(tmp_path / "hub"), OMP_NUM_THREADS="1")
    (side,) = (tmp_path / "out").glob("*_eadp.json")
    found = json.loads(side.read_text())
    assert (found["samples"], found["tokens"], found["tokens_before"]) == (3, 12, 8 * TOKENS["qwen3_vl"])
