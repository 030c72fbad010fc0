"""The images of one forward of the base model: where they are in the prompts, and the question of each prompt.

Methods before and inside the language model both start from here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache

from eadp.compat import ENCODER_OUTPUTS
from eadp.methods import BeforeMethod
from eadp.models.adapter import FamilyAdapter
from eadp.models.geometry import FamilyGeometry
from eadp.models.layout import ImageLayout, Placeholders
from eadp.models.vision_call import EncodedImage, PromptIds, VisionCall
from eadp.runtime.answers import answer_columns
from eadp.runtime.masks import Mask, check_width, valid_columns
from eadp.runtime.prompts import HostCopies, Questions, read_mask, rows_with_placeholders
from eadp.runtime.vision import encoded_images, needs_pixels, needs_received, recorded_layers
from eadp.runtime.vision_recorder import VISION_CALL, check_recorded

PIXELS = ("pixel_values", "pixel_values_videos")
IMAGE_SIZES = ("image_grid_thw", "video_grid_thw", "image_sizes")

SIZES = ("image_sizes", "image_grid_thw", "video_grid_thw", "batch_num_images")
"""The arguments of a forward that give the sizes of images and clips."""


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
    """The images of one prefill.

    Attributes:
        images: The images, prompt by prompt and from left to right, before beams repeat the prompts.
        beams: How many times beams repeat each prompt.
        valid: B×L, on the CPU, false for padding, before beams repeat the prompts; None where there is none.
    """

    images: list[PlacedImage]
    beams: int
    valid: Tensor | None


@dataclass(frozen=True)
class ModelCall:
    """What the call of the whole model shows, and that of its base model no longer does.

    Attributes:
        vision_calls: The calls that the given outputs of the vision side came from, by modality.
        drafts: How many tokens at the end of the prompts are drafts of an assistant.
        labels: B×L, those of the prompts, if they are trained on.
    """

    vision_calls: dict[str, VisionCall] = field(default_factory=dict)
    drafts: int = 0
    labels: Tensor | None = None


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
    """What one forward of the base model shows of its images. It is made before the vision tower is queued.

    Attributes:
        adapter: The adapter of the model.
        beams: How many times beams repeat each prompt.
        prompt: The prompts before beams repeat them, on the CPU.
        questions: Finds the question of each prompt.
        sizes: The sizes and grids of the images, on the CPU.
        device: Where the prompts are.
    """

    def __init__(
        self,
        adapter: FamilyAdapter,
        method: BeforeMethod,
        question: Callable[[int, int, Tensor | None], str],
        model_call: ModelCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Read the call.

        Args:
            adapter: The adapter of the model.
            method: The method, whose `needs` say what to collect.
            question: Gives the question of a row of the batch, from the number of rows and from its ids without padding
                and without an answer that it is trained on.
            model_call: What the call of the whole model showed.
            args: The arguments of the forward.
            kwargs: Its keyword arguments.
        """
        self.adapter = adapter
        self.method = method
        self._given_calls = model_call.vision_calls
        self._embeddings = kwargs.get("inputs_embeds")
        self._outputs = _given_outputs(kwargs)
        self.sizes = HostCopies(kwargs.get(name) for name in SIZES)
        calls = {modality: self._known_call(modality) for modality in self._outputs}
        repeats = [
            len(self._outputs[modality].pooler_output) // len(call.lengths)
            for modality, call in calls.items()
            if call is not None and call.lengths
        ]
        self.beams = max(repeats, default=1)
        ids = _ids(args, kwargs)
        entered: Any = self._embeddings if ids is None else ids
        self._rows, self._length = len(entered) // self.beams, entered.shape[1]
        self.device: torch.device = entered.device
        shown = [call.prompt for call in calls.values() if call is not None and call.prompt is not None]
        self.prompt = self._read_prompt(ids, kwargs.get("attention_mask"), shown[0] if shown else None)
        labels, token_types = (
            None if each is None else each[:: self.beams].cpu()
            for each in (model_call.labels, kwargs.get("token_type_ids"))
        )
        answers = answer_columns(adapter.geometry, labels, token_types)
        self.questions = Questions(adapter.geometry, self.prompt, self._rows, answers, question)
        self._placeholders = {modality: self._find_placeholders(modality) for modality in adapter.geometry.modalities}

    def _read_prompt(self, ids: Tensor | None, mask: Any, shown: PromptIds | None) -> PromptIds:
        """The prompts on the CPU: as `generate` showed them before it encoded the images, or read now."""
        if shown is not None and shown.ids is not None and shown.ids.shape == (self._rows, self._length):
            return shown
        is_flat = isinstance(mask, Tensor) and mask.ndim == 2
        valid = read_mask(mask[:: self.beams], self._length) if is_flat else None
        return PromptIds(
            None if ids is None else ids[:: self.beams].cpu(), valid, shows_padding=mask is None or is_flat
        )

    def add(self, output: Any) -> None:
        """Take an output that the forward encodes within itself; `generate` encodes before it, and passes it in."""
        self._outputs[getattr(output, VISION_CALL).modality] = output

    def rows_with_images(self) -> list[int]:
        """The prompts that have placeholders, before beams."""
        return rows_with_placeholders(self._placeholders.values())

    def context(self, mask: Mask) -> PrefillContext:
        """Collect the images of the present forward.

        Args:
            mask: The attention mask that the language model gets.
        """
        calls = [(self._call(modality), output) for modality, output in self._outputs.items()]
        valid = self.prompt.valid
        check_width(mask, self._length)
        if not self.prompt.shows_padding:
            prepared = valid_columns(mask, self._length)
            valid = None if prepared is None else read_mask(prepared[:: self.beams], self._length)
            self.questions = replace(self.questions, prompt=replace(self.prompt, valid=valid))
        placed: list[PlacedImage] = []
        for call, output in calls:
            columns = [row.nonzero().flatten() for row in self._placeholders[call.modality]]
            placeholders = Placeholders(self.prompt.ids, columns)
            images = encoded_images(self.adapter, call, output, placeholders, self.method)
            placed += _place(images, placeholders, call.modality)
        placed.sort(key=lambda image: (image.row, int(image.columns[0])))
        return PrefillContext(placed, self.beams, valid)

    def _known_call(self, modality: str) -> VisionCall | None:
        return getattr(self._outputs[modality], VISION_CALL, None) or self._given_calls.get(modality)

    def _call(self, modality: str) -> VisionCall:
        call = self._known_call(modality)
        if call is None:
            raise ValueError(
                "mm_encoder_outputs from before eadp.attach do not say what their images were; encode the images again"
            )
        layers = recorded_layers(self.adapter, self.method)
        check_recorded(call, layers, needs_received(self.adapter, self.method), needs_pixels(self.method))
        return call

    def _find_placeholders(self, modality: str) -> Tensor:
        """B×L, on the CPU, before beams."""
        token = self.adapter.geometry.placeholder_id(modality)
        if self.prompt.ids is not None:
            return self.prompt.ids == token
        embed = self.adapter.text_model.get_submodule("embed_tokens")
        given = cast(Tensor, self._embeddings)[:: self.beams]
        return (given == embed(torch.tensor(token, device=given.device))).all(-1).cpu()


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
