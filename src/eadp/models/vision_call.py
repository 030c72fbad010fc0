"""What one call of a model's vision side was given, and what it gave. Only data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eadp.core.types import TowerAttention
from eadp.models.layout import ImageLayout


@dataclass(frozen=True)
class TowerLayer:
    """The attention of one layer of the vision tower in one call, for B sequences of L cells, in the tower's own order.

    The CLS token is left out of the L cells.

    Attributes:
        layer: The layer, counted from 0.
        depth: The number of layers of the tower.
        keys: B×L×heads×c.
        cls: B×L, the row of the CLS query, mean over heads. None for towers without a CLS token.
        received: B×L, mean over heads and sum over queries. None where it was not asked for.
        cls_full_width: B×L, the row of the CLS query with all heads as one.
    """

    layer: int
    depth: int
    keys: Tensor
    cls: Tensor | None
    received: Tensor | None
    cls_full_width: Tensor | None = None

    def as_one_sequence(self) -> TowerLayer:
        """The same with all sequences one after another in one."""
        cls, received, full = (
            None if each is None else each.flatten()[None] for each in (self.cls, self.received, self.cls_full_width)
        )
        return replace(self, keys=self.keys.flatten(0, 1)[None], cls=cls, received=received, cls_full_width=full)


@dataclass(frozen=True)
class PromptIds:
    """The prompts of a batch, on the CPU.

    Attributes:
        ids: B×L; None for prompts given as embeddings.
        valid: B×L, false for padding; None where there is none.
        encoded: The settings of the pruning and the questions that were encoded under them, by row.
        shows_padding: Whether the padding is known at all: a prepared mask shows it only to the language model.
    """

    ids: Tensor | None
    valid: Tensor | None = None
    encoded: tuple[Any, dict[int, Any]] | None = None
    shows_padding: bool = True


@dataclass(frozen=True)
class VisionCall:
    """One call of `get_image_features` or `get_video_features`.

    Attributes:
        modality: "image" or "video".
        arguments: The arguments of the call, without the pixels. Tensors are on the CPU.
        pixel_shape: The shape of the pixels.
        lengths: The rows of each entry of `pooler_output`, before `generate` repeats them for beams.
        attention: The recorded layers of the tower, those that the method asked for.
        pixels: The pixels, where the method asked for them.
        prompt: The prompts that the images are for, where `generate` showed them.
    """

    modality: str
    arguments: dict[str, Any]
    pixel_shape: tuple[int, ...]
    lengths: list[int]
    attention: Sequence[TowerLayer] = ()
    pixels: Tensor | None = None
    prompt: PromptIds | None = None

    def listed(self, argument: str) -> list[Any]:
        """An argument that is a tensor or a list, as a list."""
        return torch.as_tensor(self.arguments[argument]).tolist()


@dataclass(frozen=True)
class TowerRows:
    """The tokens of an image before the model's projector.

    Attributes:
        rows: N×w, in the order of the tokens.
        cls: blocks×w, the CLS token of each block; None where the tower has none.
    """

    rows: Tensor
    cls: Tensor | None = None


@dataclass(frozen=True)
class BlockPixels:
    """The pixels of an image's blocks, and the call that they came with.

    Attributes:
        call: The call of the vision side.
        blocks: …×3×height×width for each block.
    """

    call: VisionCall
    blocks: Sequence[Tensor]


@dataclass(frozen=True)
class EncodedImage:
    """One image (or clip) as the vision side encoded it.

    Attributes:
        layout: Where its tokens are.
        states: crops×cells×d, the hidden states that a guide aligns with text. None where the model has none.
        attention: The layers of the tower that the method asked for, in the order of the tokens.
        tower_rows: Its tokens before the projector. None where the method does not need them, or where tokens are not
            one to one with rows that the projector takes.
        pixels: The pixels of its blocks; only for methods that need them.
        tower_features: N×w, the mean of each token's patches before the projector; only for methods that need it.
        padding: N, which tokens show only padding; only for methods that ask, and where the model pads images.
    """

    layout: ImageLayout
    states: Tensor | None = None
    attention: Sequence[TowerAttention] = ()
    tower_rows: TowerRows | None = None
    pixels: BlockPixels | None = None
    tower_features: Tensor | None = None
    padding: Tensor | None = None

    def __len__(self) -> int:
        return len(self.layout)
