"""The plugin for lmms-eval: `lmms-eval --model eadp --model_args pretrained=…,method=eadp,keep=128 --tasks pope`."""

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
from eadp.evaluate.journaled_model import EvalRequest, JournaledModel, hash_content, summarize, write_summary
from eadp.evaluate.pruned_model import PrunedModel
from eadp.models.prompt import Conversation

HARNESS = f"lmms-eval {version('lmms-eval')}"

BLANK_LINE = "\n\n"
"""lmms-eval's default stop text. It is ignored because it would cut answers of several paragraphs."""


def manifest() -> ModelManifest:
    """Return the description of the model for the entry point `lmms_eval.models`."""
    return ModelManifest(model_id="eadp", chat_class_path="eadp.evaluate.lmms.Eadp")


class Eadp(lmms):
    """A pruned model for lmms-eval: any checkpoint that `eadp.attach` supports, with any method.

    Args:
        pretrained: `pocket`, the folder of a checkpoint, or its name on the hub.
        batch_size: The number of prompts per batch.
        device: The device, if there is one rank; with several, each rank has its own GPU.
        max_batch_size: Ignored; lmms-eval passes it to every model.
        journal: A folder in which each answer is saved as soon as it is known. A later run answers only the rest.
        side: The folder for the summary with settings, tokens and times; by default lmms-eval's --output_path.
        **arguments: Arguments of `HarnessSettings.from_arguments`: method, keep, …, and the settings of the method.

    Raises:
        ValueError: If an argument is unknown or has a wrong value.
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
        self.settings = HarnessSettings.from_arguments(pretrained=pretrained, **arguments)
        self._rank, self._world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.device = _select_device(device, self._world_size)
        self._summary_folder = side
        journal_settings = {"harness": HARNESS, **self.settings.as_json()}
        opened = None if journal is None else Journal.open(Path(journal), journal_settings, rank=self._rank)
        self._journaled: JournaledModel | None = JournaledModel(PrunedModel(self.settings, str(self.device)), opened)

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult | str]:
        """Answer requests; called by lmms-eval."""
        if self._journaled is None:
            raise RuntimeError("lmms-eval has already called clean() on this model: create a new one")
        own = self._build_requests([each for each in requests if not _is_padding(each)])
        with tqdm(total=len(own), disable=self._rank != 0, desc="eadp") as bar:
            records = self._journaled.answer(own, self.batch_size, bar.update)
        self._summary_folder = self._summary_folder or _find_output_path(requests)
        answers = iter(zip(records, own, strict=True))
        return ["" if _is_padding(each) else _build_result(*next(answers)) for each in requests]

    def _build_requests(self, instances: Sequence[Instance]) -> list[EvalRequest]:
        """Convert requests of lmms-eval. A task may repeat a question: each repetition is a sample of its own."""
        requests, repetitions = [], Counter[str]()
        for instance in instances:
            context, to_messages, generation, number, task, split = instance.args
            base = f"{task}/{split}/{number}/{hash_content(context, generation)}"
            repetitions[base] += 1
            key = base if repetitions[base] == 1 else f"{base}#{repetitions[base]}"
            load = partial(self._load_conversation, to_messages, task, split, number)
            requests.append(EvalRequest(key, task, load, _convert_generation(generation)))
        return requests

    def _load_conversation(self, to_messages: Any, task: str, split: str, number: int) -> Conversation:
        return [
            {"role": message["role"], "content": [_convert_part(part) for part in message["content"]]}
            for message in to_messages(self.task_dict[task][split][number])
        ]

    def clean(self) -> None:
        """Report the results and release the model and the journal; called by lmms-eval on every rank at the end."""
        if self._journaled is not None:
            self._report(self._journaled)
            if self._journaled.journal is not None:
                self._journaled.journal.close()
            self._journaled = None
        super().clean()

    def _report(self, journaled: JournaledModel) -> None:
        """Add token counts and times to lmms-eval's results, and write the summary."""
        records = self._gather(list(journaled.records.values()))
        new = len(self._gather(sorted(journaled.new_keys)))
        if self._rank != 0 or not records:
            return
        summary = summarize(records)
        tokens, seconds = sum(each["new_tokens"] for each in records), summary["generate_seconds"]
        means = {f"visual_{name}": summary[name] for name in ("tokens", "sent", "tokens_before", "layer_mean")}
        log_metrics(seconds, tokens, tokens / seconds, means)
        if self._summary_folder is None:
            logger.warning("eadp: tokens and times are not written; give --output_path, or side= in model_args")
            return
        written = write_summary(Path(self._summary_folder), self.settings, records, new, HARNESS)
        logger.info("eadp: written " + ", ".join(map(str, written)))

    def _gather(self, items: list[Any]) -> list[Any]:
        """Return the items of all ranks."""
        if self._world_size == 1:
            return items
        by_rank: list[Any] = [None] * self._world_size
        distributed.all_gather_object(by_rank, items)
        return [item for rank_items in by_rank for item in rank_items]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Raise an error, because only generated answers are supported."""
        raise NotImplementedError(
            "eadp supports tasks of output_type generate_until: use the variant of this task that generates answers"
        )

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        """Raise an error, because tasks of several rounds are not supported."""
        raise NotImplementedError(
            "eadp supports tasks of output_type generate_until: tasks of several rounds are not supported"
        )


def _select_device(given: str | None, ranks: int) -> torch.device:
    """Return the given device if there is one rank, and otherwise the rank's own GPU."""
    if given is not None and ranks == 1:
        return torch.device(given)
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    )


def _is_padding(instance: Instance) -> bool:
    """Return whether lmms-eval added a request only so that all ranks have equally many. We need not answer those."""
    return bool((instance.metadata or {}).get("__padding_only__"))


def _convert_generation(given: dict[str, Any]) -> dict[str, Any]:
    """Convert the generation options of an lmms-eval task."""
    return {"max_new_tokens": given.get("max_gen_toks"), **given, "until": _get_stop_texts(given)}


def _get_stop_texts(given: dict[str, Any]) -> list[str]:
    until = given.get("until") or []
    return [text for text in ([until] if isinstance(until, str) else until) if text and text != BLANK_LINE]


def _build_result(record: Record, request: EvalRequest) -> GenerationResult:
    answer = record["answer"]
    for stop_text in request.generation["until"]:
        answer = answer.split(stop_text)[0]
    return GenerationResult(answer, TokenCounts(output_tokens=record["new_tokens"]))


def _convert_part(part: dict[str, Any]) -> dict[str, Any]:
    """Convert a part of an lmms-eval message to the form that `PrunedModel.answer` takes."""
    if part["type"] == "image":
        return {"type": "image", "image": part["url"]}
    if part["type"] == "video":
        url = part["url"] if isinstance(part["url"], dict) else {"url": part["url"]}
        start, end = url.get("video_start", part.get("start_time")), url.get("video_end", part.get("end_time"))
        return {"type": "video", "video": url.get("url") or url.get("path"), "start": start, "end": end}
    return part


def _find_output_path(requests: Sequence[Instance]) -> str | None:
    """Find lmms-eval's --output_path: requests hold a method of their task, and tasks hold the arguments."""
    arguments = (getattr(getattr(each.args[1], "__self__", None), "args", None) for each in requests)
    return next((path for each in arguments if (path := getattr(each, "output_path", None))), None)
