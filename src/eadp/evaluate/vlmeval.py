"""VLMEvalKit with a pruned model. It has no plugins, so the model is added to its list before it is started."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vlmeval import run as harness
from vlmeval.config import supported_VLM
from vlmeval.smp.file import RUN_STATUS_NAME
from vlmeval.vlm.base import BaseModel

from eadp.evaluate.harness_settings import HarnessSettings
from eadp.evaluate.journal import Journal
from eadp.evaluate.journaled_model import EvalRequest, JournaledModel, hash_content, write_summary
from eadp.evaluate.pruned_model import PrunedModel
from eadp.models.prompt import Conversation

HARNESS = f"VLMEvalKit (ms-vlmeval {version('ms-vlmeval')})"


class Eadp(BaseModel):
    """A pruned model for VLMEvalKit, which passes one message at a time with images and texts in any order.

    Attributes:
        nframe: The number of frames per video. VLMEvalKit replaces it by the number of the data set, if it has one.
    """

    INTERLEAVE = True
    VIDEO_LLM = True

    def __init__(self, journaled: JournaledModel, generation: dict[str, Any]) -> None:
        super().__init__()
        self._journaled, self._generation = journaled, generation
        self.nframe = journaled.model.settings.frames

    def generate_inner(self, message: list[dict[str, str]], dataset: str | None = None) -> str:
        """Answer a message; called by VLMEvalKit."""
        content = [_identify_part(part) for part in message]
        key = f"{dataset}/{hash_content(content, self._generation, self.nframe)}"
        request = EvalRequest(key, str(dataset), lambda: self._build_conversation(message), self._generation)
        return self._journaled.answer([request])[0]["answer"]

    def _build_conversation(self, message: list[dict[str, str]]) -> Conversation:
        parts: dict[str, list[dict[str, Any]]] = {}
        for part in message:
            parts.setdefault(part.get("role", "user"), []).append(self._build_part(part["type"], part["value"]))
        return [{"role": role, "content": parts[role]} for role in ("system", "user", "assistant") if role in parts]

    def _build_part(self, kind: str, value: str) -> dict[str, Any]:
        return {"type": kind, kind: value, "frames": self.nframe} if kind == "video" else {"type": kind, kind: value}


def _identify_part(part: dict[str, str]) -> list[str]:
    """Return what identifies a part of a message: a text itself, or the hash of a file."""
    if part["type"] == "text":
        return ["text", part["value"]]
    return [part["type"], sha256(Path(part["value"]).read_bytes()).hexdigest()]


def evaluate(
    data: Sequence[str],
    settings: HarnessSettings,
    out: Path,
    *,
    journal: Path | None = None,
    generation: dict[str, Any] | None = None,
    device: str | None = None,
    arguments: Sequence[str] = (),
) -> list[Path]:
    """Run data sets of VLMEvalKit.

    Args:
        data: The names of the data sets; NAME:CLASS reads $LMUData/NAME.tsv with VLMEvalKit's class CLASS.
        settings: The settings of the model.
        out: VLMEvalKit's work directory.
        journal: The folder in which each answer is saved as soon as it is known; by default `journal` in the model's
            folder of the work directory.
        generation: Options for generating answers, such as {"max_new_tokens": 512}.
        device: The device of the model.
        arguments: Further arguments, as on VLMEvalKit's command line.

    Returns:
        The paths of the summary and the samples that were written; nothing on ranks other than 0.

    Raises:
        ValueError: If VLMEvalKit does not have a data set, or the journal has other settings.
        RuntimeError: If VLMEvalKit fails on a data set or does not finish it.
    """
    name, rank = settings.name, int(os.environ.get("RANK", "0"))
    generation = generation or {}
    folder = out / name
    journal_settings = {"harness": HARNESS, **settings.as_json(), "generation": generation}
    with Journal.open(journal or folder / "journal", journal_settings, rank=rank) as opened:
        journaled = JournaledModel(PrunedModel(settings, device), opened)
        # VLMEvalKit passes options to some models, which it recognizes by their names.
        supported_VLM[name] = lambda **options: Eadp(journaled, generation)
        try:
            _run_harness(data, name, out, arguments)
        finally:
            del supported_VLM[name]
        if rank:
            return []
        return write_summary(folder, settings, opened.records(), len(journaled.new_keys), HARNESS)


def _run_harness(data: Sequence[str], model: str, out: Path, arguments: Sequence[str]) -> None:
    (out / model).mkdir(parents=True, exist_ok=True)
    known = [each for each in data if ":" not in each]
    classes = dict(each.split(":", 1) for each in data if ":" in each)
    if known:
        _call_main(["--data", *known, "--model", model, "--work-dir", str(out), *arguments])
    if classes:
        config = out / model / "eadp_data.json"
        data_sets = {name: {"class": data_class, "dataset": name} for name, data_class in classes.items()}
        config.write_text(json.dumps({"model": {model: {}}, "data": data_sets}))
        _call_main(["--config", str(config), "--work-dir", str(out), *arguments])
    _check_status(out / model, [*known, *classes])


def _call_main(arguments: Sequence[str]) -> None:
    """Call VLMEvalKit's main function, which reads its arguments from sys.argv."""
    previous, sys.argv = sys.argv, ["vlmeval", *arguments]
    try:
        harness.main()
    finally:
        sys.argv = previous


def _check_status(folder: Path, data: Sequence[str]) -> None:
    """Raise an error for a data set that failed. VLMEvalKit itself skips it and only notes that in its status file."""
    data_sets = json.loads((folder / RUN_STATUS_NAME).read_text()).get("datasets", {})
    for name in data:
        status = data_sets.get(name, {})
        if status.get("skip_reason") == "invalid_dataset":
            raise ValueError(f"VLMEvalKit has no data set {name!r}, and $LMUData has no {name}.tsv")
        if error := status.get("error_message"):
            raise RuntimeError(f"VLMEvalKit failed on {name}: {error}")
        if status.get("status") != "done":
            raise RuntimeError(f"VLMEvalKit did not finish {name}: see its log above")
