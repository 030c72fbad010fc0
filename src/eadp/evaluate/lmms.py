"""lmms-eval's plugin: `lmms-eval --model eadp --model_args pretrained=…,method=eadp,keep=128 --tasks pope,gqa`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from lmms_eval.models.registry_v2 import ModelManifest
from loguru import logger
from torch import distributed
from tqdm import tqdm

from eadp.evaluate.harness_settings import HarnessSettings
from eadp.evaluate.journal import Journal, Record
from eadp.evaluate.journaled_model import EvalRequest, JournaledModel, digest, totals, write
from eadp.evaluate.pruned_model import PrunedModel
from eadp.models.prompt import Conversation

HARNESS = f"lmms-eval {version('lmms-eval')}"

BLANK_LINE = "\n\n"
"""The harness's own end of an answer for tasks that name none; it would cut answers of several paragraphs."""


def manifest() -> ModelManifest:
    """What the entry point `lmms_eval.models` gives."""
    return ModelManifest(model_id="eadp", chat_class_path="eadp.evaluate.lmms.Eadp")


class Eadp(lmms):
    """Any checkpoint that `eadp.attach` knows, under any method.

    journal: folder in which every answer is kept at once; a run that goes on with it answers only what is not there.
    side:    folder for settings, tokens and times; default: the harness's --output_path.
    All other arguments are `Settings`: pretrained, method, keep, …, and the method's own.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str,
        batch_size: int | str = 1,
        device: str | None = None,
        max_batch_size: int | None = None,
        journal: str | None = None,
        side: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if not str(batch_size).isdigit() or int(batch_size) < 1:
            raise ValueError(f"batch_size must be a number of prompts, such as 8, got {batch_size!r}")
        self.batch_size = int(batch_size)
        self.settings = HarnessSettings.of(pretrained=pretrained, **arguments)
        self._rank, self._world_size = (int(os.environ.get(name, at)) for name, at in (("RANK", 0), ("WORLD_SIZE", 1)))
        self.device = _device(device, self._world_size)
        self._side = side
        kept = {"harness": HARNESS, **self.settings.as_json()}
        opened = None if journal is None else Journal.open(Path(journal), kept, rank=self._rank)
        self._journaled: JournaledModel | None = JournaledModel(PrunedModel(self.settings, str(self.device)), opened)

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult | str]:
        if self._journaled is None:
            raise RuntimeError("lmms-eval has cleaned this model up: make a new one")
        asked = self._requests([each for each in requests if not _padding(each)])
        with tqdm(total=len(asked), disable=self._rank != 0, desc="eadp") as bar:
            records = self._journaled.answer(asked, self.batch_size, bar.update)
        self._side = self._side or _output_path(requests)
        answers = iter(zip(records, asked, strict=True))
        return ["" if _padding(each) else _result(*next(answers)) for each in requests]

    def _requests(self, instances: Sequence[Instance]) -> list[EvalRequest]:
        """A task may ask the same several times: each time is a sample of its own."""
        asked, times = [], Counter[str]()
        for instance in instances:
            context, to_messages, wishes, number, task, split = instance.args
            key = f"{task}/{split}/{number}/{digest(context, wishes)}"
            times[key] += 1
            name = key if times[key] == 1 else f"{key}#{times[key]}"
            asked.append(
                EvalRequest(name, task, partial(self._read, to_messages, task, split, number), _wishes(wishes))
            )
        return asked

    def _read(self, to_messages: Any, task: str, split: str, number: int) -> Conversation:
        return [
            {"role": message["role"], "content": [_part(part) for part in message["content"]]}
            for message in to_messages(self.task_dict[task][split][number])
        ]

    def clean(self) -> None:
        """Called on every rank when all is answered: report, and let go of the model and the journal."""
        if self._journaled is not None:
            self._report(self._journaled)
            if self._journaled.journal is not None:
                self._journaled.journal.close()
            self._journaled = None
        super().clean()

    def _report(self, journaled: JournaledModel) -> None:
        """Into the harness's own results, and beside them."""
        records, new = self._gathered(list(journaled.records.values())), len(self._gathered(sorted(journaled.new)))
        if self._rank != 0 or not records:
            return
        found = totals(records)
        tokens, seconds = sum(each["new_tokens"] for each in records), found["generate_seconds"]
        means = {f"visual_{name}": found[name] for name in ("tokens", "sent", "tokens_before", "layer_mean")}
        log_metrics(seconds, tokens, tokens / seconds, means)
        if self._side is None:
            logger.warning("eadp: tokens and times are not written; give --output_path, or side= in model_args")
            return
        written = write(Path(self._side), self.settings, records, new, HARNESS)
        logger.info("eadp: written " + ", ".join(map(str, written)))

    def _gathered(self, mine: list[Any]) -> list[Any]:
        """Those of all ranks."""
        if self._world_size == 1:
            return mine
        each: list[Any] = [None] * self._world_size
        distributed.all_gather_object(each, mine)
        return [one for of in each for one in of]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError(
            "eadp answers tasks of output_type generate_until; take the task's generating variant"
        )

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        raise NotImplementedError(
            "eadp answers tasks of output_type generate_until; tasks of several rounds are not run"
        )


def _device(given: str | None, ranks: int) -> torch.device:
    """A GPU for each rank; the given device is one rank's."""
    if given is not None and ranks == 1:
        return torch.device(given)
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    )


def _padding(instance: Instance) -> bool:
    """Ranks with fewer samples get some more, not scored, so that all make as many steps. Ours need not."""
    return bool((instance.metadata or {}).get("__padding_only__"))


def _wishes(given: dict[str, Any]) -> dict[str, Any]:
    named = {"max_new_tokens": given.get("max_gen_toks")} | given
    return {**named, "until": _until(given)}


def _until(given: dict[str, Any]) -> list[str]:
    until = given.get("until") or []
    return [end for end in ([until] if isinstance(until, str) else until) if end and end != BLANK_LINE]


def _result(record: Record, request: EvalRequest) -> GenerationResult:
    text = record["answer"]
    for end in request.wishes["until"]:
        text = text.split(end)[0]
    return GenerationResult(text, TokenCounts(output_tokens=record["new_tokens"]))


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """From lmms-eval's wording to ours."""
    if part["type"] == "image":
        return {"type": "image", "image": part["url"]}
    if part["type"] == "video":
        url = part["url"] if isinstance(part["url"], dict) else {"url": part["url"]}
        start, end = url.get("video_start", part.get("start_time")), url.get("video_end", part.get("end_time"))
        return {"type": "video", "video": url.get("url") or url.get("path"), "start": start, "end": end}
    return part


def _output_path(requests: Sequence[Instance]) -> str | None:
    """--output_path: the harness gives its arguments to the tasks, whose methods the requests carry."""
    arguments = (getattr(getattr(each.args[1], "__self__", None), "args", None) for each in requests)
    return next((path for each in arguments if (path := getattr(each, "output_path", None))), None)
