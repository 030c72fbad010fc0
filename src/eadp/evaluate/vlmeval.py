"""VLMEvalKit with a pruned model: it has no plugins, so we add a model to its list and start it."""

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
from eadp.evaluate.journaled_model import EvalRequest, JournaledModel, digest, write
from eadp.evaluate.pruned_model import PrunedModel
from eadp.models.prompt import Conversation

HARNESS = f"VLMEvalKit (ms-vlmeval {version('ms-vlmeval')})"


class Eadp(BaseModel):
    """A pruned model as VLMEvalKit knows models: one message at a time, pictures and texts in any order."""

    INTERLEAVE = True
    VIDEO_LLM = True

    def __init__(self, journaled: JournaledModel, wishes: dict[str, Any]) -> None:
        super().__init__()
        self._journaled, self._wishes = journaled, wishes
        self.nframe = journaled.model.settings.frames
        """Of a clip; the harness puts the data set's own number here, where that has one."""

    def generate_inner(self, message: list[dict[str, str]], dataset: str | None = None) -> str:
        key = f"{dataset}/{digest([_identity(part) for part in message], self._wishes, self.nframe)}"
        request = EvalRequest(key, str(dataset), lambda: self._conversation(message), self._wishes)
        return self._journaled.answer([request])[0]["answer"]

    def _conversation(self, message: list[dict[str, str]]) -> Conversation:
        parts: dict[str, list[dict[str, Any]]] = {}
        for part in message:
            parts.setdefault(part.get("role", "user"), []).append(self._part(part["type"], part["value"]))
        return [{"role": role, "content": parts[role]} for role in ("system", "user", "assistant") if role in parts]

    def _part(self, kind: str, value: str) -> dict[str, Any]:
        return {"type": kind, kind: value, "frames": self.nframe} if kind == "video" else {"type": kind, kind: value}


def _identity(part: dict[str, str]) -> list[str]:
    """What tells a part from others: a text itself, a file by what is in it."""
    if part["type"] == "text":
        return ["text", part["value"]]
    return [part["type"], sha256(Path(part["value"]).read_bytes()).hexdigest()]


def evaluate(
    data: Sequence[str],
    settings: HarnessSettings,
    out: Path,
    *,
    journal: Path | None = None,
    wishes: dict[str, Any] | None = None,
    device: str | None = None,
    arguments: Sequence[str] = (),
) -> list[Path]:
    """Run data sets of VLMEvalKit; gives the side files that were written.

    data:      their names; NAME:CLASS for $LMUData/NAME.tsv as the harness's class CLASS reads it.
    out:       the harness's work directory.
    journal:   where every answer is kept at once; default: `journal` in the model's folder there.
    wishes:    how to generate, such as {"max_new_tokens": 512}.
    arguments: for the harness, as on its command line.
    """
    name, rank = settings.name, int(os.environ.get("RANK", "0"))
    wishes = wishes or {}
    folder = out / name
    kept = {"harness": HARNESS, **settings.as_json(), "wishes": wishes}
    with Journal.open(journal or folder / "journal", kept, rank=rank) as opened:
        journaled = JournaledModel(PrunedModel(settings, device), opened)
        # The harness gives some models options of their own, by their names.
        supported_VLM[name] = lambda **options: Eadp(journaled, wishes)
        try:
            _run(data, name, out, arguments)
        finally:
            del supported_VLM[name]
        if rank:
            return []
        return write(folder, settings, opened.records(), len(journaled.new), HARNESS)


def _run(data: Sequence[str], model: str, out: Path, arguments: Sequence[str]) -> None:
    (out / model).mkdir(parents=True, exist_ok=True)
    plain = [each for each in data if ":" not in each]
    classes = dict(each.split(":", 1) for each in data if ":" in each)
    if plain:
        _start(["--data", *plain, "--model", model, "--work-dir", str(out), *arguments])
    if classes:
        config = out / model / "eadp_data.json"
        described = {name: {"class": of, "dataset": name} for name, of in classes.items()}
        config.write_text(json.dumps({"model": {model: {}}, "data": described}))
        _start(["--config", str(config), "--work-dir", str(out), *arguments])
    _check(out / model, [*plain, *classes])


def _start(arguments: Sequence[str]) -> None:
    """Its command, which reads its arguments from where commands read them."""
    former, sys.argv = sys.argv, ["vlmeval", *arguments]
    try:
        harness.main()
    finally:
        sys.argv = former


def _check(folder: Path, data: Sequence[str]) -> None:
    """The harness skips what fails and ends as if nothing had happened; its notes say so."""
    notes = json.loads((folder / RUN_STATUS_NAME).read_text()).get("datasets", {})
    for name in data:
        note = notes.get(name, {})
        if note.get("skip_reason") == "invalid_dataset":
            raise ValueError(f"VLMEvalKit has no data set {name!r}, nor is there {name}.tsv in $LMUData")
        if error := note.get("error_message"):
            raise RuntimeError(f"VLMEvalKit failed on {name}: {error}")
        if note.get("status") != "done":
            raise RuntimeError(f"VLMEvalKit did not finish {name}: see its log above")
