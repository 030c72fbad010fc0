"""The images of one forward of the base model: where they are in the prompts, and the question of each prompt.

Methods before and inside the language model both start from here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from eadp.compat import ENCODER_OUTPUTS
from eadp.methods import BeforeMethod
from eadp.models.adapter import FamilyAdapter
from eadp.models.geometry import FamilyGeometry
from eadp.models.layout import ImageLayout, Placeholders
from eadp.models.vision_call import EncodedImage, VisionCall
from eadp.runtime.answers import answer_columns, without_answer
from eadp.runtime.masks import Mask, valid_columns
from eadp.runtime.vision import encoded_images, needs_pixels, needs_received, recorded_layers
from eadp.runtime.vision_recorder import VISION_CALL, check_recorded

PIXELS = ("pixel_values", "pixel_values_videos")
IMAGE_SIZES = ("image_grid_thw", "video_grid_thw", "image_sizes")


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


def has_images(kwargs: dict[str, Any]) -> bool:
    """Whether a forward has any images, by its keyword arguments."""
    return bool(_given_outputs(kwargs)) or any(kwargs.get(name) is not None for name in PIXELS)


def _given_outputs(kwargs: dict[str, Any]) -> dict[str, Any]:
    outputs = kwargs.get(ENCODER_OUTPUTS) or {}
    if not isinstance(outputs, dict):
        raise ValueError("mm_encoder_outputs must be a dict by modality, as generate makes it")
    return {modality: output for modality, output in outputs.items() if output is not None}


def check_call(base: nn.Module, geometry: FamilyGeometry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check that a forward of the base model can be pruned.

    Args:
        base: The base model, with the input embeddings.
        geometry: The geometry of its family.
        args: The arguments of the forward.
        kwargs: Its keyword arguments.

    Raises:
        ValueError: If it is packed, if it has placeholders without their images, or if image features are already
            merged into its embeddings.
    """
    if kwargs.get("cu_seq_lens_q") is not None or not isinstance(kwargs.get("past_key_values"), Cache | None):
        raise ValueError(
            "packed sequences and continuous batching cannot be pruned; detach, or generate in ordinary batches"
        )
    ids, embeddings = _ids(args, kwargs), kwargs.get("inputs_embeds")
    if has_images(kwargs):
        return
    if ids is None and embeddings is not None and embeddings.shape[1] > 1:
        _check_embeddings(kwargs)
    for modality in geometry.modalities:
        if _has_placeholders(base, geometry.placeholder_id(modality), ids, embeddings):
            raise ValueError(
                f"the prompt has {modality} placeholders, but this call has no {modality} features: pass the "
                f"{modality}s; chunked prefill (prefill_chunk_size) loses them, and the draft model of assisted "
                "decoding does not get any, so do not attach that one"
            )


def _has_placeholders(base: Any, placeholder: int, ids: Tensor | None, embeddings: Tensor | None) -> bool:
    """Whether a prompt, given as ids or as embeddings, has a placeholder; a single decode step has none."""
    if ids is not None:
        return ids.shape[1] > 1 and bool((ids == placeholder).any())
    if embeddings is None or embeddings.shape[1] == 1:
        return False
    row = base.get_input_embeddings()(torch.tensor([placeholder], device=embeddings.device))
    return bool((embeddings == row.to(embeddings)).all(dim=-1).any())


def _check_embeddings(kwargs: dict[str, Any]) -> None:
    """Check a prompt that is given as embeddings without pixels.

    Image features that are merged into them look like any other row, and text alone is allowed. Other arguments may
    tell which it is.
    """
    given = [name for name in IMAGE_SIZES if kwargs.get(name) is not None]
    kinds = kwargs.get("mm_token_type_ids")
    if kinds is not None and bool(kinds.any()):
        given.append("mm_token_type_ids")
    if given:
        raise ValueError(
            f"this prompt is given as inputs_embeds with {' and '.join(given)} but without pixel_values: the features "
            "of its images are already merged into the embeddings, where they cannot be pruned; pass input_ids and "
            "pixel_values, or detach"
        )
    warnings.warn(
        "this prompt is given as inputs_embeds without pixel_values, so if it has images, none of their tokens are "
        "pruned; pass input_ids and pixel_values instead",
        stacklevel=3,
    )


def _ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    return args[0] if args else kwargs.get("input_ids")


class VisionCapture:
    """What one forward of the base model shows of its images."""

    def __init__(
        self,
        adapter: FamilyAdapter,
        method: BeforeMethod,
        question: Callable[[int, int, Tensor | None], str],
        given_calls: dict[str, VisionCall],
        labels: Tensor | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Read the call.

        Args:
            adapter: The adapter of the model.
            method: The method, whose `needs` say what to collect.
            question: Gives the question of a row of the batch, from the number of rows and from its ids without padding
                and without an answer that it is trained on.
            given_calls: The calls that given outputs of the vision side came from, by modality. Where accelerate
                spreads a model over devices, the base model gets copies of the outputs, which do not name their calls.
            labels: B×L, the labels of the prompts, if they are trained on.
            args: The arguments of the forward.
            kwargs: Its keyword arguments.
        """
        self.adapter = adapter
        self.method = method
        self._question = question
        self._given_calls = given_calls
        self._ids = _ids(args, kwargs)
        self._embeddings = kwargs.get("inputs_embeds")
        self._outputs = _given_outputs(kwargs)
        self._answers = answer_columns(adapter.geometry, labels, kwargs.get("token_type_ids"))

    def add(self, output: Any) -> None:
        """Take an output that the forward encodes within itself; `generate` encodes before it, and passes it in."""
        self._outputs[getattr(output, VISION_CALL).modality] = output

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
        answers = None if self._answers is None else self._answers[::beams].cpu()
        entered: Any = self._embeddings if self._ids is None else self._ids
        rows = len(entered) // beams

        def question(row: int) -> str:
            if ids is None:
                return self._question(row, rows, None)
            is_prompt = slice(None) if valid is None else valid[row]
            prompt = ids[row][is_prompt]
            if answers is not None:
                prompt = without_answer(self.adapter.geometry, prompt, answers[row][is_prompt])
            return self._question(row, rows, prompt)

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
        layers = recorded_layers(self.adapter, self.method)
        check_recorded(call, layers, needs_received(self.adapter, self.method), needs_pixels(self.method))
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
