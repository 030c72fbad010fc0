"""A checkpoint under pruning that answers conversations with pictures and clips: what the harnesses share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor
from transformers.video_utils import VideoMetadata

from eadp.evaluate.harness_settings import HarnessSettings
from eadp.evaluate.media import CROPS, load_clip, load_image, square_of
from eadp.evaluate.wording import released
from eadp.loading import load_model
from eadp.method_spec import MethodSpec, build_method
from eadp.models import adapter_of
from eadp.models.llava_video import convert
from eadp.models.prompt import Conversation, tokenize_conversations
from eadp.models.question import PLACEHOLDER_IDS, question_of
from eadp.runtime import attach

LONGEST_ANSWER = 1024
"""New tokens where neither the task nor the checkpoint says how many."""

GENERATION = ("max_new_tokens", "do_sample", "temperature", "top_p", "top_k", "num_beams", "repetition_penalty")
"""What of a task's wishes `generate` is given."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One answer and what it took.

    tokens, tokens_before: visual tokens after and before pruning, over all images of the prompt.
    sent:        what the language model gets of them: those after pruning, and the newlines that stay.
    layer_mean:  visual tokens, mean over the layers of the language model.
    new_tokens:  length of the answer.
    prepare_seconds, generate_seconds: the batch's time for making inputs and for the model, shared out evenly.
    batch:       how many prompts were answered together.
    """

    answer: str
    tokens: int
    sent: int
    tokens_before: int
    layer_mean: float
    new_tokens: int
    prepare_seconds: float
    generate_seconds: float
    batch: int


class PrunedModel:
    """A model that is pruned until it is detached."""

    def __init__(self, settings: HarnessSettings, device: str | None = None) -> None:
        self.settings = settings
        self.model, self.processor = load_model(settings.pretrained, dtype=settings.dtype, device=device)
        self.processor.tokenizer.padding_side = "left"
        if settings.llava_video:
            convert(self.model, self.processor)
        self._square = square_of(self.model, self.processor, settings.resolution, settings.square, settings.pad_colour)
        self._pruned = None if settings.spec is None else self._attach(settings.spec)

    def _attach(self, spec: MethodSpec) -> Any:
        method, guide = build_method(spec), cast(Any, self.settings.guide)
        if self.settings.sign is not None and method is not None and "text" in method.needs:
            from eadp.models.guides import guide_for

            guide = guide_for(self.model, self.processor, guide, sign=self.settings.sign)
        question = self._released if self.settings.question == "released" else None
        # Every crop then has all its tokens, of the filling too.
        whole = {"unpad": False} if self.settings.square == CROPS else {}
        return attach(self.model, self.processor, guide=guide, question=question, **{**whole, **spec.attachment})

    def _released(self, ids: Tensor) -> str:
        """What guides pruning in EADP's release. ids: of one prompt."""
        return released(question_of(ids, self.processor, adapter_of(self.model).config))

    def answer(self, conversations: Sequence[Conversation], wishes: Mapping[str, Any] | None = None) -> list[Answer]:
        """Answer some conversations together.

        conversations: chat messages; their contents are parts such as {"type": "image", "image": picture or path},
                       {"type": "video", "video": path or frames}, {"type": "text", "text": …}; a clip may also say
                       between which seconds it is meant ("start", "end") and how many "frames".
        wishes:        how to generate (GENERATION); greedy where it says nothing.
        """
        # Processors cannot take prompts with and without pictures in one batch.
        kinds = [_kinds(conversation) for conversation in conversations]
        answers: dict[int, Answer] = {}
        for kind in dict.fromkeys(kinds):
            rows = [row for row, each in enumerate(kinds) if each == kind]
            answers.update(zip(rows, self._together([conversations[row] for row in rows], wishes or {}), strict=True))
        return [answers[row] for row in range(len(conversations))]

    def detach(self) -> None:
        """Give the model back as it was."""
        if self._pruned is not None:
            self._pruned.detach()

    @torch.inference_mode()
    def _together(self, conversations: Sequence[Conversation], wishes: Mapping[str, Any]) -> list[Answer]:
        start = time.perf_counter()
        inputs = self._inputs(conversations)
        ready = time.perf_counter()
        out = self.model.generate(**inputs, **self._generation(wishes))[:, inputs["input_ids"].shape[1] :]
        texts = self.processor.batch_decode(out, skip_special_tokens=True)
        done = time.perf_counter()
        rows = len(conversations)
        lengths = (out != self.processor.tokenizer.pad_token_id).sum(dim=1).tolist()
        return [
            Answer(text.strip(), *used, length, (ready - start) / rows, (done - ready) / rows, rows)
            for text, used, length in zip(texts, self._tokens(conversations, inputs), lengths, strict=True)
        ]

    def _inputs(self, conversations: Sequence[Conversation]) -> Any:
        when: list[VideoMetadata] = []
        seen = [[self._seen(message, when) for message in conversation] for conversation in conversations]
        options: dict[str, Any] = {"do_sample_frames": False, "video_metadata": when} if when else {}
        if self.processor.chat_template is None:
            inputs = self._untemplated(seen, options)
        else:
            inputs = tokenize_conversations(self.processor, seen, **options)
        return inputs.to(self.model.device, self.model.dtype)

    def _seen(self, message: Message, when: list[VideoMetadata]) -> Message:
        """The message with its pictures and clips read from wherever they are. when: gets the frames of each clip."""

        def see(part: dict[str, Any]) -> dict[str, Any]:
            if part["type"] == "image":
                return {"type": "image", "image": load_image(part["image"], self._square)}
            if part["type"] == "video":
                count = part.get("frames") or self.settings.frames
                taken = load_clip(part["video"], count, part.get("start"), part.get("end"))
                when.append(taken.metadata)
                return {"type": "video", "video": taken.frames}
            if part["type"] == "text":
                return {"type": "text", "text": part["text"]}
            raise ValueError(f"a message has texts, images and videos, got a part of type {part['type']!r}")

        return {"role": message["role"], "content": [see(part) for part in message["content"]]}

    def _untemplated(self, conversations: Sequence[Conversation], options: dict[str, Any]) -> Any:
        """PaliGemma is no chat model: the pictures, then the text."""
        images = [[part["image"] for part in _parts(each) if part["type"] == "image"] for each in conversations]
        texts = [
            "<image>" * len(of) + "\n".join(part["text"] for part in _parts(each) if part["type"] == "text")
            for of, each in zip(images, conversations, strict=True)
        ]
        padding = len(conversations) > 1
        return self.processor(
            images=images if any(images) else None, text=texts, padding=padding, return_tensors="pt", **options
        )

    def _generation(self, wishes: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: wishes[name] for name in GENERATION if wishes.get(name) is not None}
        if not given.get("do_sample", given.get("temperature", 0) > 0) or given.get("temperature") == 0:
            # None, or what the checkpoint has for sampling would be warned about.
            given |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if "max_new_tokens" not in given and self.model.generation_config.max_new_tokens is None:
            given["max_new_tokens"] = LONGEST_ANSWER
        return given

    def _tokens(self, conversations: Sequence[Conversation], inputs: Any) -> list[tuple[int, int, int, float]]:
        """For each prompt: visual tokens after pruning, those sent, those before, and their mean over layers."""
        pictures = [sum(part["type"] != "text" for part in _parts(each)) for each in conversations]
        if self._pruned is None or not any(pictures):
            config = self.model.config
            ids = {getattr(config, name) for name in PLACEHOLDER_IDS if getattr(config, name, None) is not None}
            held: Tensor = torch.isin(inputs["input_ids"], torch.tensor(sorted(ids), device=self.model.device))
            return [(count, count, count, float(count)) for count in held.sum(dim=1).tolist()]
        selections, beams = iter(self._pruned.last), len(self._pruned.last) // sum(pictures)
        of_each = [list(islice(selections, count * beams))[:count] for count in pictures]
        return [
            (
                sum(map(len, of)),
                sum(each.tokens_sent for each in of),
                sum(each.total for each in of),
                sum(each.tokens_layer_mean for each in of),
            )
            for of in of_each
        ]


def _parts(conversation: Conversation) -> list[dict[str, Any]]:
    return [part for message in conversation for part in message["content"]]


def _kinds(conversation: Conversation) -> tuple[str, ...]:
    return tuple(sorted({part["type"] for part in _parts(conversation)} - {"text"}))
