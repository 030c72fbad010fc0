"""The prompts of a prefill, read before the vision tower is queued: reading them later would wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eadp.core import TextGuide, trace
from eadp.models.geometry import FamilyGeometry
from eadp.models.vision_call import PromptIds
from eadp.runtime.answers import without_answer


class HostCopies:
    """Small tensors (sizes, grids) and their copies on the CPU."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        self._copies = [(each, each.cpu()) for each in tensors if isinstance(each, Tensor)]

    def of(self, value: Any) -> Any:
        """Return the copy of a tensor, which is made now unless it is one of those given; other values as they are."""
        if not isinstance(value, Tensor):
            return value
        copies = [copy for tensor, copy in self._copies if tensor is value]
        return copies[0] if copies else value.cpu()


@dataclass(frozen=True)
class ShownPrompt:
    """What is known of the prompts when their images are encoded.

    Attributes:
        sizes: The sizes and grids of the images.
        prompt: The prompts; None where they are not known yet, or where the forward reads them itself.
    """

    sizes: HostCopies
    prompt: PromptIds | None = None


def read_mask(mask: Any, length: int) -> Tensor | None:
    """Read which of the last `length` columns of a 2-D mask are not padding: B×length; None where none is padding."""
    valid = (mask.cpu() != 0)[:, -length:]
    return None if bool(valid.all()) else valid


def rows_with_placeholders(placeholders: Iterable[Tensor]) -> list[int]:
    """The prompts that have images. placeholders: B×L for each modality, true for its placeholders."""
    return torch.stack([each.any(1) for each in placeholders]).any(0).nonzero().flatten().tolist()


@dataclass(frozen=True)
class Questions:
    """Finds and encodes the question of each prompt.

    Attributes:
        geometry: The geometry of the family.
        prompt: The prompts, before beams repeat them.
        rows: The number of prompts.
        answers: B×L, on the CPU, which columns the model is trained to write; None where the call does not say.
        read: Gives the question of a row from the number of rows and from its ids without padding and answer.
    """

    geometry: FamilyGeometry
    prompt: PromptIds
    rows: int
    answers: Tensor | None
    read: Callable[[int, int, Tensor | None], str]

    def of_row(self, row: int) -> str:
        """Return the question of a prompt."""
        if self.prompt.ids is None:
            return self.read(row, self.rows, None)
        is_prompt = slice(None) if self.prompt.valid is None else self.prompt.valid[row]
        ids = self.prompt.ids[row][is_prompt]
        if self.answers is not None:
            ids = without_answer(self.geometry, ids, self.answers[row][is_prompt])
        return self.read(row, self.rows, ids)

    def encode(self, encode: Callable[[str], TextGuide], rows: Iterable[int]) -> dict[int, TextGuide]:
        """Encode the questions of some rows."""
        with trace.part("text guide"):
            return {row: encode(self.of_row(row)) for row in rows}
