"""Local data sets in VLMEvalKit's own format, made from pocket scenes."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pandas as pd
from scenes import LETTERS, Scene, one_of_four, yes_or_no

POPE, CHOICE = "PocketPOPE", "PocketChoice"
DATA = f"{POPE}:ImageYORNDataset,{CHOICE}"
"""The data sets for the command line: the first with the class that reads POPE, the second without a class."""


def prompt(scene: Scene) -> str:
    """Return the prompt that VLMEvalKit builds for a scene."""
    if not scene.options:
        return scene.question
    options = "".join(f"{letter}. {option}\n" for letter, option in zip(LETTERS, scene.options, strict=True))
    return f"Question: {scene.question}\nOptions:\n{options}Please select the correct answer from the options above. \n"


def write(folder: Path, total: int) -> dict[str, list[Scene]]:
    """Write the data sets, and return the scenes of each."""
    folder.mkdir()
    scenes_by_name = {POPE: yes_or_no(total), CHOICE: one_of_four(total)}
    for name, scenes in scenes_by_name.items():
        rows = [
            {
                "index": scene.number,
                "image": _encoded(scene),
                "question": scene.question,
                "answer": scene.answer if scene.options else scene.answer.capitalize(),
                "category": "things",
                **dict(zip(LETTERS, scene.options, strict=False)),
            }
            for scene in scenes
        ]
        pd.DataFrame(rows).to_csv(folder / f"{name}.tsv", sep="\t", index=False)
    return scenes_by_name


def _encoded(scene: Scene) -> str:
    file = io.BytesIO()
    scene.image.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()
