"""The pruned model behind both harnesses: it answers conversations with images and videos."""

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
from eadp.evaluate.media import CROPS, load_clip, load_image, set_image_size
from eadp.evaluate.wording import remove_short_answer_request
from eadp.loading import load_model
from eadp.method_spec import MethodSpec, build_method
from eadp.models import adapter_of
from eadp.models.llava_video import convert
from eadp.models.prompt import Conversation, tokenize_conversations
from eadp.models.question import PLACEHOLDER_IDS, question_of
from eadp.runtime import attach

DEFAULT_MAX_NEW_TOKENS = 1024
"""The limit for an answer if neither the task nor the checkpoint sets one."""

GENERATION_OPTIONS = ("max_new_tokens", "do_sample", "temperature", "top_p", "top_k", "num_beams", "repetition_penalty")
"""The generation options of a task that are passed to `generate`."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One answer with its token counts and times.

    Attributes:
        answer: The text of the answer.
        tokens: The visual tokens after pruning, over all images of the prompt.
        sent: The same, plus the newline tokens that stay: what the language model receives.
        tokens_before: The visual tokens before pruning.
        layer_mean: The visual tokens, averaged over the layers of the language model.
        new_tokens: The length of the answer in tokens.
        prepare_seconds: The time for building the inputs of the batch, divided by its size.
        generate_seconds: The time for generating the answers of the batch, divided by its size.
        batch: The number of prompts in the batch.
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
    """A model that is pruned until `detach` is called.

    Attributes:
        settings: The settings.
        model: The model.
        processor: Its processor.
    """

    def __init__(self, settings: HarnessSettings, device: str | None = None) -> None:
        self.settings = settings
        self.model, self.processor = load_model(settings.pretrained, dtype=settings.dtype, device=device)
        self.processor.tokenizer.padding_side = "left"
        if settings.llava_video:
            convert(self.model, self.processor)
        self._square = set_image_size(
            self.model, self.processor, settings.resolution, settings.square, settings.pad_colour
        )
        self._pruned = None if settings.spec is None else self._attach(settings.spec)

    def _attach(self, spec: MethodSpec) -> Any:
        method, guide = build_method(spec), cast(Any, self.settings.guide)
        if self.settings.sign is not None and method is not None and "text" in method.needs:
            from eadp.models.guides import guide_for

            guide = guide_for(self.model, self.processor, guide, sign=self.settings.sign)
        question = self._get_released_question if self.settings.question == "released" else None
        # With square=crops every crop keeps all its tokens, including those of the padding.
        crops = {"unpad": False} if self.settings.square == CROPS else {}
        return attach(self.model, self.processor, guide=guide, question=question, **{**crops, **spec.attach_arguments})

    def _get_released_question(self, ids: Tensor) -> str:
        """Return the question that guides pruning in EADP's release, from the token ids of one prompt."""
        return remove_short_answer_request(question_of(ids, self.processor, adapter_of(self.model).config))

    def answer(
        self, conversations: Sequence[Conversation], generation: Mapping[str, Any] | None = None
    ) -> list[Answer]:
        """Answer conversations, batched by the media that they contain.

        Args:
            conversations: Chat messages. Their contents are parts such as {"type": "image", "image": image or path},
                {"type": "video", "video": path or frames} and {"type": "text", "text": …}. A video may also have
                "start" and "end" in seconds and a number of "frames".
            generation: Options for `generate` (`GENERATION_OPTIONS`); decoding is greedy by default.

        Raises:
            ValueError: If a part has another type.
        """
        # Processors do not accept prompts with and without images in one batch.
        kinds = [_media_kinds(conversation) for conversation in conversations]
        answers: dict[int, Answer] = {}
        for kind in dict.fromkeys(kinds):
            rows = [row for row, each in enumerate(kinds) if each == kind]
            batch = self._answer_batch([conversations[row] for row in rows], generation or {})
            answers.update(zip(rows, batch, strict=True))
        return [answers[row] for row in range(len(conversations))]

    def detach(self) -> None:
        """Restore the unpruned model."""
        if self._pruned is not None:
            self._pruned.detach()

    @torch.inference_mode()
    def _answer_batch(self, conversations: Sequence[Conversation], generation: Mapping[str, Any]) -> list[Answer]:
        start = time.perf_counter()
        inputs = self._build_inputs(conversations)
        ready = time.perf_counter()
        output = self.model.generate(**inputs, **self._generation_arguments(generation))
        output = output[:, inputs["input_ids"].shape[1] :]
        texts = self.processor.batch_decode(output, skip_special_tokens=True)
        done = time.perf_counter()
        rows = len(conversations)
        lengths = (output != self.processor.tokenizer.pad_token_id).sum(dim=1).tolist()
        token_counts = self._count_tokens(conversations, inputs)
        return [
            Answer(text.strip(), *counts, length, (ready - start) / rows, (done - ready) / rows, rows)
            for text, counts, length in zip(texts, token_counts, lengths, strict=True)
        ]

    def _build_inputs(self, conversations: Sequence[Conversation]) -> Any:
        videos: list[VideoMetadata] = []
        loaded = [[self._load_media(message, videos) for message in conversation] for conversation in conversations]
        options: dict[str, Any] = {"do_sample_frames": False, "video_metadata": videos} if videos else {}
        if self.processor.chat_template is None:
            inputs = self._build_plain_inputs(loaded, options)
        else:
            inputs = tokenize_conversations(self.processor, loaded, **options)
        return inputs.to(self.model.device, self.model.dtype)

    def _load_media(self, message: Message, videos: list[VideoMetadata]) -> Message:
        """Load the images and videos of a message, and append the metadata of the videos to `videos`."""

        def load(part: dict[str, Any]) -> dict[str, Any]:
            if part["type"] == "image":
                return {"type": "image", "image": load_image(part["image"], self._square)}
            if part["type"] == "video":
                count = part.get("frames") or self.settings.frames
                clip = load_clip(part["video"], count, part.get("start"), part.get("end"))
                videos.append(clip.metadata)
                return {"type": "video", "video": clip.frames}
            if part["type"] == "text":
                return {"type": "text", "text": part["text"]}
            raise ValueError(f"a part of a message must be a text, an image or a video, got {part['type']!r}")

        return {"role": message["role"], "content": [load(part) for part in message["content"]]}

    def _build_plain_inputs(self, conversations: Sequence[Conversation], options: dict[str, Any]) -> Any:
        """Build inputs for a model without a chat template, such as PaliGemma: the images, then the text."""
        images = [[part["image"] for part in _parts(each) if part["type"] == "image"] for each in conversations]
        texts = [
            "<image>" * len(own) + "\n".join(part["text"] for part in _parts(each) if part["type"] == "text")
            for own, each in zip(images, conversations, strict=True)
        ]
        padding = len(conversations) > 1
        return self.processor(
            images=images if any(images) else None, text=texts, padding=padding, return_tensors="pt", **options
        )

    def _generation_arguments(self, generation: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {name: generation[name] for name in GENERATION_OPTIONS if generation.get(name) is not None}
        if not arguments.get("do_sample", arguments.get("temperature", 0) > 0) or arguments.get("temperature") == 0:
            # None, because transformers warns about the checkpoint's sampling options when it decodes greedily.
            arguments |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if "max_new_tokens" not in arguments and self.model.generation_config.max_new_tokens is None:
            arguments["max_new_tokens"] = DEFAULT_MAX_NEW_TOKENS
        return arguments

    def _count_tokens(self, conversations: Sequence[Conversation], inputs: Any) -> list[tuple[int, int, int, float]]:
        """Return per prompt the visual tokens after pruning, those sent, those before, and their mean over layers."""
        media_counts = [sum(part["type"] != "text" for part in _parts(each)) for each in conversations]
        if self._pruned is None or not any(media_counts):
            config = self.model.config
            ids = {getattr(config, name) for name in PLACEHOLDER_IDS if getattr(config, name, None) is not None}
            is_visual: Tensor = torch.isin(inputs["input_ids"], torch.tensor(sorted(ids), device=self.model.device))
            return [(count, count, count, float(count)) for count in is_visual.sum(dim=1).tolist()]
        # With beam search there is one selection per image and beam; the first ones of a prompt are enough.
        selections, beams = iter(self._pruned.last), len(self._pruned.last) // sum(media_counts)
        by_prompt = [list(islice(selections, count * beams))[:count] for count in media_counts]
        return [
            (
                sum(map(len, selected)),
                sum(each.tokens_sent for each in selected),
                sum(each.total for each in selected),
                sum(each.tokens_layer_mean for each in selected),
            )
            for selected in by_prompt
        ]


def _parts(conversation: Conversation) -> list[dict[str, Any]]:
    return [part for message in conversation for part in message["content"]]


def _media_kinds(conversation: Conversation) -> tuple[str, ...]:
    return tuple(sorted({part["type"] for part in _parts(conversation)} - {"text"}))
