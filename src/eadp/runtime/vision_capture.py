"""The images of one forward of the base model: where they are in the prompts, and the question of each prompt.

Methods before and inside the language model both start from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from eadp.compat import ENCODER_OUTPUTS
from eadp.methods import BeforeMethod
from eadp.models.adapter import FamilyAdapter
from eadp.models.layout import ImageLayout, Placeholders
from eadp.models.vision_call import EncodedImage, VisionCall
from eadp.runtime.hooks import VISION_CALL, Hooks, VisionCallRecorder
from eadp.runtime.masks import Mask, valid_columns
from eadp.runtime.vision import AttentionRecorder, encoded_images

PIXELS = ("pixel_values", "pixel_values_videos")


@dataclass(frozen=True)
class PlacedImage:
    """An image and its place in the batch.

    Attributes:
        image: The encoded image.
        row: Its prompt, as a row of the batch.
        columns: The column of each of its placeholders.
    """

    image: EncodedImage
    row: int
    columns: Tensor

    @property
    def layout(self) -> ImageLayout:
        """Where its tokens are among its placeholders."""
        return self.image.layout

    @property
    def token_columns(self) -> Tensor:
        """N, the column of each token."""
        return self.columns[self.layout.slots]


@dataclass(frozen=True)
class PrefillContext:
    """The images and questions of one prefill.

    Attributes:
        images: The images, prompt by prompt and from left to right, before beams repeat the prompts.
        beams: How many times beams repeat each prompt.
        question: Gives the question of a row.
    """

    images: list[PlacedImage]
    beams: int
    question: Callable[[int], str]


class VisionCapture:
    """Follows each forward of the base model, and collects what the method needs of its vision side.

    Attributes:
        has_images: Whether the present forward has any images.
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: FamilyAdapter,
        question: Callable[[int, Tensor | None], str],
        method: BeforeMethod,
    ) -> None:
        """Set up the capture.

        Args:
            model: The model that the user calls.
            adapter: Its adapter.
            question: Gives the question of a row of the batch, from its ids without padding.
            method: The method, whose `needs` say what to collect.
        """
        self.model = model
        self.adapter = adapter
        self.method = method
        self.has_images = False
        self._question = question
        self._inside = False
        self._ids: Tensor | None = None
        self._embeddings: Tensor | None = None
        self._outputs: dict[str, Any] = {}
        self._given_calls: dict[str, VisionCall] = {}

    def install(self, hooks: Hooks) -> None:
        """Hook into the model."""
        base, recording = self.adapter.base, None
        if "vision_attention" in self.method.needs:
            attention = AttentionRecorder(self.adapter, self.method)
            attention.install(hooks)
            recording = attention.recording
        needs_pixels = "pixels" in self.method.needs or "padding" in self.method.needs
        recorder = VisionCallRecorder(self._report, recording, needs_pixels)
        for modality in self.adapter.geometry.modalities:
            name = f"get_{modality}_features"
            hooks.override(base, name, recorder.wrap(getattr(base, name), modality))
        if self.model is not base:
            hooks.before(self.model, self._enter_model)
        hooks.before(base, self._enter_base)
        hooks.after(base, self._leave_base)

    def _enter_model(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Where accelerate spreads a model over devices, the base model gets copies of the outputs without their calls.
        outputs = kwargs.get(ENCODER_OUTPUTS)
        outputs = outputs if isinstance(outputs, dict) else {}
        calls = {name: getattr(each, VISION_CALL, None) for name, each in outputs.items()}
        self._given_calls = {name: call for name, call in calls.items() if call is not None}

    def _enter_base(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outputs = kwargs.get(ENCODER_OUTPUTS) or {}
        if not isinstance(outputs, dict):
            raise ValueError("mm_encoder_outputs must be a dict by modality, as generate makes it")
        if kwargs.get("cu_seq_lens_q") is not None or not isinstance(kwargs.get("past_key_values"), Cache | None):
            raise ValueError(
                "packed sequences and continuous batching cannot be pruned; detach, or generate in ordinary batches"
            )
        self._ids = args[0] if args else kwargs.get("input_ids")
        self._embeddings = kwargs.get("inputs_embeds")
        self._outputs = {modality: output for modality, output in outputs.items() if output is not None}
        self._inside = True
        self.has_images = bool(self._outputs) or any(kwargs.get(name) is not None for name in PIXELS)
        if not self.has_images:
            self._check_for_lost_images()

    def _leave_base(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._ids = self._embeddings = None
        self._outputs, self._given_calls = {}, {}
        self._inside = self.has_images = False

    def _report(self, output: Any) -> None:
        # `generate` encodes before the forward and passes the output in; a plain forward encodes within itself.
        if self._inside:
            self._outputs[getattr(output, VISION_CALL).modality] = output

    def _check_for_lost_images(self) -> None:
        ids = self._ids
        if ids is None or ids.shape[1] == 1:
            return
        for modality in self.adapter.geometry.modalities:
            if bool((ids == self.adapter.geometry.placeholder_id(modality)).any()):
                raise ValueError(
                    f"the prompt has {modality} placeholders, but this call has no {modality} features; chunked "
                    f"prefill (prefill_chunk_size) loses them: generate without it, and pass the {modality}s"
                )

    def context(self, length: int, mask: Mask) -> PrefillContext:
        """Collect the images and questions of the present forward.

        Args:
            length: The number of columns of the prompts.
            mask: The attention mask that the language model gets.
        """
        calls = [(self._call(modality), output) for modality, output in self._outputs.items()]
        beams = max(
            (len(output.pooler_output) // len(call.lengths) for call, output in calls if call.lengths), default=1
        )
        ids = None if self._ids is None else self._ids[::beams].cpu()
        valid = valid_columns(mask, length)
        valid = None if valid is None else valid[::beams].cpu()

        def question(row: int) -> str:
            prompt = None if ids is None else ids[row]
            return self._question(row, prompt if prompt is None or valid is None else prompt[valid[row]])

        placed: list[PlacedImage] = []
        for call, output in calls:
            is_placeholder = self._is_placeholder(call.modality)[::beams].cpu()
            placeholders = Placeholders(ids, [row.nonzero().flatten() for row in is_placeholder])
            images = encoded_images(self.adapter, call, output, placeholders, self.method)
            placed += _place(images, placeholders, call.modality)
        placed.sort(key=lambda image: (image.row, int(image.columns[0])))
        return PrefillContext(placed, beams, question)

    def _call(self, modality: str) -> VisionCall:
        call = getattr(self._outputs[modality], VISION_CALL, None) or self._given_calls.get(modality)
        if call is None:
            raise ValueError(
                "mm_encoder_outputs from before eadp.attach do not say what their images were; encode the images again"
            )
        return call

    def _is_placeholder(self, modality: str) -> Tensor:
        """B×L."""
        token = self.adapter.geometry.placeholder_id(modality)
        if self._embeddings is None:
            return torch.as_tensor(self._ids == token)
        embed = self.adapter.text_model.get_submodule("embed_tokens")
        return (self._embeddings == embed(torch.tensor(token, device=self._embeddings.device))).all(-1)


def _place(images: list[EncodedImage], placeholders: Placeholders, modality: str) -> list[PlacedImage]:
    """Give each image its columns. The placeholders of the prompts are assigned in order."""
    placed, waiting = [], iter(images)
    for row, columns in enumerate(placeholders.columns):
        start = 0
        while start < len(columns):
            image = next(waiting, None)
            if image is None or start + image.layout.length > len(columns):
                raise ValueError(
                    f"prompt {row} has {len(columns)} {modality} placeholders, which is not what its {modality}s fill"
                )
            placed.append(PlacedImage(image, row, columns[start : start + image.layout.length]))
            start += image.layout.length
    return placed
