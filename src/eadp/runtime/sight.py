"""What a forward of the base model sees: its images, where they lie in the prompts, and what is asked about them.

Methods before and inside the language model both start from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from eadp.methods import BeforeMethod
from eadp.models.family import Family, Picture, Prompt, Seen
from eadp.runtime.hooks import SEEN, Hooks, Watch
from eadp.runtime.masks import Mask, segment
from eadp.runtime.vision import TowerWatch, with_attention, with_tower_rows, with_views

PIXELS = ("pixel_values", "pixel_values_videos")


@dataclass(frozen=True)
class Placed:
    """A picture and where it lies: in which row of the batch, at which columns of the sequence."""

    picture: Picture
    row: int
    columns: Tensor

    @property
    def tokens(self) -> Tensor:
        """N, the column of each token."""
        return self.columns[self.picture.slots]


@dataclass(frozen=True)
class View:
    """The pictures of the prompts, row by row from left to right, before beams repeat the prompts `beams` times.

    question: what a row asks.
    """

    placed: list[Placed]
    beams: int
    question: Callable[[int], str]


class Sight:
    """Follows each forward of the base model, and gathers what the method needs of its vision side.

    has_images: whether the present one carries any.
    """

    def __init__(
        self, model: nn.Module, family: Family, question: Callable[[int, Tensor | None], str], method: BeforeMethod
    ) -> None:
        self.model = model
        self.family = family
        self.method = method
        self.has_images = False
        self._question = question
        self._inside = False
        self._ids: Tensor | None = None
        self._embeddings: Tensor | None = None
        self._outputs: dict[str, Any] = {}
        self._handed_in: dict[str, Seen] = {}

    def install(self, hooks: Hooks) -> None:
        base, recording = self.family.base, None
        if "vision_attention" in self.method.needs:
            tower = TowerWatch(self.family, self.method)
            tower.install(hooks)
            recording = tower.recording
        watch = Watch(self._report, recording, keep_pixels="pixels" in self.method.needs)
        for modality in self.family.modalities:
            name = f"get_{modality}_features"
            hooks.override(base, name, watch.over(getattr(base, name), modality))
        if self.model is not base:
            hooks.before(self.model, self._arrive)
        hooks.before(base, self._enter)
        hooks.after(base, self._leave)

    def _arrive(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Where accelerate spreads a model, the base model gets copies that say nothing of their images."""
        outputs = kwargs.get("mm_encoder_outputs")
        seen = {name: getattr(each, SEEN, None) for name, each in outputs.items()} if isinstance(outputs, dict) else {}
        self._handed_in = {name: each for name, each in seen.items() if each is not None}

    def _enter(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outputs = kwargs.get("mm_encoder_outputs") or {}
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
            self._refuse_lost_images()

    def _leave(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._ids = self._embeddings = None
        self._outputs, self._handed_in = {}, {}
        self._inside = self.has_images = False

    def _report(self, output: Any) -> None:
        """`generate` encodes before the forward, and hands the output in; forward encodes inside itself."""
        if self._inside:
            self._outputs[getattr(output, SEEN).modality] = output

    def _refuse_lost_images(self) -> None:
        ids = self._ids
        if ids is None or ids.shape[1] == 1:
            return
        for modality in self.family.modalities:
            if bool((ids == self.family.token_id(modality)).any()):
                raise ValueError(
                    f"the prompt has {modality} placeholders, but this call carries no {modality} features; chunked "
                    f"prefill (prefill_chunk_size) loses them: generate without it, and pass the {modality}s"
                )

    def view(self, length: int, mask: Mask) -> View:
        """What this forward sees. length: columns of the prompts; mask: as the language model gets it."""
        seen = [(self._seen(modality), output) for modality, output in self._outputs.items()]
        beams = max(
            (len(output.pooler_output) // len(each.lengths) for each, output in seen if each.lengths), default=1
        )
        ids = None if self._ids is None else self._ids[::beams].cpu()
        valid = segment(mask, length)
        valid = None if valid is None else valid[::beams].cpu()

        def question(row: int) -> str:
            prompt = None if ids is None else ids[row]
            return self._question(row, prompt if prompt is None or valid is None else prompt[valid[row]])

        placed: list[Placed] = []
        for each, output in seen:
            there = self._placeholders(each.modality)[::beams].cpu()
            prompt = Prompt(ids, [row.nonzero().flatten() for row in there])
            pictures = with_attention(self.family, each, self.family.pictures(each, output, prompt))
            if "tower_rows" in self.method.needs:
                pictures = with_tower_rows(self.family, each, output, pictures)
            placed += _place(with_views(self.family, each, pictures), prompt, each.modality)
        placed.sort(key=lambda one: (one.row, int(one.columns[0])))
        return View(placed, beams, question)

    def _seen(self, modality: str) -> Seen:
        seen = getattr(self._outputs[modality], SEEN, None) or self._handed_in.get(modality)
        if seen is None:
            raise ValueError(
                "mm_encoder_outputs from before eadp.attach do not say what their images were; make them anew"
            )
        return seen

    def _placeholders(self, modality: str) -> Tensor:
        """B×L."""
        token = self.family.token_id(modality)
        if self._embeddings is None:
            return torch.as_tensor(self._ids == token)
        embed = self.family.text_model.get_submodule("embed_tokens")
        return (self._embeddings == embed(torch.tensor(token, device=self._embeddings.device))).all(-1)


def _place(pictures: list[Picture], prompt: Prompt, modality: str) -> list[Placed]:
    """Each picture with its columns: the rows' placeholders are handed out in order."""
    placed, waiting = [], iter(pictures)
    for row, places in enumerate(prompt.places):
        start = 0
        while start < len(places):
            picture = next(waiting, None)
            if picture is None or start + picture.length > len(places):
                raise ValueError(
                    f"prompt {row} has {len(places)} {modality} placeholders, which is not what its {modality}s fill"
                )
            placed.append(Placed(picture, row, places[start : start + picture.length]))
            start += picture.length
    return placed
