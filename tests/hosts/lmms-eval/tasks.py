"""Local tasks in lmms-eval's own format, made from pocket scenes."""

from __future__ import annotations

from pathlib import Path

import datasets
from scenes import LETTERS, Scene, one_of_four, yes_or_no

POPE, CHOICE = "pocket_pope", "pocket_choice"

FUNCTIONS = """
from lmms_eval.tasks.pope.utils import *


def choice_visual(doc):
    return [doc["image"].convert("RGB")]


def choice_text(doc, lmms_eval_specific_kwargs=None):
    return doc["question"] + "\\n" + "".join(f"{letter}. {doc[letter]}\\n" for letter in "ABCD")


def choice_results(doc, results):
    said = results[0].lower()
    chosen = [letter for letter in "ABCD" if said in (letter.lower(), doc[letter])]
    return {"choice_accuracy": float(chosen == [doc["answer"]])}
"""

TASK = """
task: {name}
dataset_path: parquet
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_target: answer
generation_kwargs:
  max_new_tokens: 8
  temperature: 0
  do_sample: false
lmms_eval_specific_kwargs:
  default:
    pre_prompt: ""
    post_prompt: ""
metadata:
  - version: 0.0
"""

POPE_TASK = """doc_to_visual: !function utils.pope_doc_to_visual
doc_to_text: !function utils.pope_doc_to_text
process_results: !function utils.pope_process_results
metric_list:
  - metric: pope_accuracy
    aggregation: !function utils.pope_aggregate_accuracy
    higher_is_better: true
  - metric: pope_f1_score
    aggregation: !function utils.pope_aggregate_f1_score
    higher_is_better: true
"""

CHOICE_TASK = """doc_to_visual: !function utils.choice_visual
doc_to_text: !function utils.choice_text
process_results: !function utils.choice_results
metric_list:
  - metric: choice_accuracy
    aggregation: mean
    higher_is_better: true
"""


def prompt(scene: Scene) -> str:
    """Return the prompt of the task for a scene."""
    return (
        scene.question
        + ("\n" if scene.options else "")
        + "".join(f"{letter}. {option}\n" for letter, option in zip(LETTERS, scene.options, strict=False))
    )


def write(folder: Path, total: int) -> dict[str, list[Scene]]:
    """Write the files of the tasks, and return the scenes of each task."""
    folder.mkdir()
    (folder / "utils.py").write_text(FUNCTIONS)
    scenes_by_task = {POPE: yes_or_no(total), CHOICE: one_of_four(total)}
    for (name, scenes), kind in zip(scenes_by_task.items(), (POPE_TASK, CHOICE_TASK), strict=True):
        rows = datasets.Dataset.from_list(
            [
                {
                    "question_id": scene.number,
                    "image": scene.image,
                    "question": scene.question,
                    "answer": scene.answer,
                    **dict(zip(LETTERS, scene.options, strict=False)),
                }
                for scene in scenes
            ]
        ).cast_column("image", datasets.Image())
        rows.to_parquet(folder / f"{name}.parquet")
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=folder / f"{name}.parquet") + kind)
    return scenes_by_task
