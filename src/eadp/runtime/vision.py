"""What the vision tower attended to, gives to the projector, or sees at another resolution, for methods that go by it.

The tower keeps its attention implementation: probes look at the queries and keys of the layers that the method names,
and sum their attention up chunk by chunk. What a picture's tokens got of it is read off when the pictures are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from eadp.core import Grid, TowerAttention, trace
from eadp.methods import BeforeMethod
from eadp.models.family import Family, Picture, Seen, TowerLayer, TowerRows
from eadp.runtime.hooks import Hooks
from eadp.runtime.probe import AttentionProbe, Heads


class TowerWatch:
    """Records the attention of the tower's layers that a method asks for."""

    def __init__(self, family: Family, method: BeforeMethod) -> None:
        self.has_cls = family.has_cls
        self.wants_received = not (method.uses_cls_attention and self.has_cls)
        self.modules = family.tower_attention()
        self.layers = method.vision_layers(len(self.modules), family.config.model_type)
        self._calls: dict[int, list[TowerLayer]] | None = None

    def install(self, hooks: Hooks) -> None:
        for layer in sorted(set(self.layers)):
            see = partial(self._see, layer)
            AttentionProbe(self.modules[layer], see, when=lambda: self._calls is not None).install(hooks)

    @contextmanager
    def recording(self) -> Iterator[list[TowerLayer]]:
        """The list is filled when the block ends."""
        self._calls = {layer: [] for layer in self.layers}
        recorded: list[TowerLayer] = []
        try:
            yield recorded
            if silent := [layer for layer, calls in self._calls.items() if not calls]:
                raise RuntimeError(f"the vision tower was run past its attention layers {silent}: nothing to go by")
            recorded += [side_by_side(self._calls[layer]) for layer in self.layers]
        finally:
            self._calls = None

    @trace.part("relevance")
    def _see(self, layer: int, heads: Heads) -> None:
        if self._calls is None:
            return
        seen = tower_layer(heads, layer, len(self.modules), self.has_cls, self.wants_received)
        self._calls[layer].append(seen)


def tower_layer(heads: Heads, layer: int, depth: int, has_cls: bool, wants_received: bool) -> TowerLayer:
    """What one call of a tower's attention shows."""
    keys, first, received = heads.key.transpose(1, 2), torch.zeros(1, dtype=torch.long), None
    if wants_received:
        # One sequence at a time: all queries of 64 frames at once would take up much room.
        each = [heads.of(row).received() for row in range(len(keys))]
        received = torch.cat(each) * heads.query.shape[2]
    if not has_cls:
        return TowerLayer(layer, depth, keys, None, received)
    cls, full_width = heads.rows(first)[:, :, 0].mean(1), heads.full_width().rows(first)[:, 0, 0]
    return TowerLayer(layer, depth, keys, cls, received, full_width)


def side_by_side(calls: list[TowerLayer]) -> TowerLayer:
    """Towers that see several images in one sequence attend image by image, or window by window: one call each."""
    if len(calls) == 1:
        return calls[0]
    received = torch.cat([call.received for call in calls if call.received is not None], dim=1)
    return replace(calls[0], keys=torch.cat([call.keys for call in calls], dim=1), received=received)


def with_attention(family: Family, seen: Seen, pictures: list[Picture]) -> list[Picture]:
    """The pictures with what their tokens got of the recorded attention."""
    if not seen.attention:
        return pictures

    def tokens(rows: Tensor | None) -> list[Tensor] | list[None]:
        return [None] * len(pictures) if rows is None else family.tower_tokens(seen, pictures, rows.flatten(2))

    attention: list[list[TowerAttention]] = [[] for _ in pictures]
    for layer in seen.attention:
        columns = (tokens(_column(each)) for each in (layer.cls, layer.received, layer.cls_full_width))
        for kept, picture, keys, cls, received, full in zip(
            attention, pictures, tokens(layer.keys), *columns, strict=True
        ):
            kept.append(
                TowerAttention(
                    layer.layer,
                    layer.depth,
                    cast(Tensor, keys).unflatten(1, layer.keys.shape[2:]),
                    None if cls is None else cls[:, 0],
                    None if received is None else received[:, 0] / len(picture),
                    None if full is None else full[:, 0],
                    family.config.model_type,
                )
            )
    return [replace(picture, attention=layers) for picture, layers in zip(pictures, attention, strict=True)]


def with_tower_rows(family: Family, seen: Seen, output: Any, pictures: list[Picture]) -> list[Picture]:
    """The pictures with their tokens before the projector, where that takes them one by one."""
    # A choice needs no gradients, but new rows are made of these.
    with torch.enable_grad():
        rows = family.tower_rows(seen, output, pictures)
    return [replace(picture, tower=each) for picture, each in zip(pictures, rows, strict=True)]


def _column(rows: Tensor | None) -> Tensor | None:
    return None if rows is None else rows[..., None]


def joined_attention(pictures: Sequence[Picture]) -> list[TowerAttention]:
    """The attention of several pictures that share a budget, as of one."""
    total = sum(map(len, pictures))
    together = []
    for layers in zip(*(picture.attention for picture in pictures), strict=True):
        cls = [layer.cls for layer in layers if layer.cls is not None]
        full = [layer.cls_full_width for layer in layers if layer.cls_full_width is not None]
        received = [layer.received * (len(layer.keys) / total) for layer in layers if layer.received is not None]
        together.append(
            replace(
                layers[0],
                keys=torch.cat([layer.keys for layer in layers]),
                cls=torch.cat(cls) if cls else None,
                received=torch.cat(received) if received else None,
                cls_full_width=torch.cat(full) if full else None,
            )
        )
    return together


@dataclass(frozen=True)
class Extra:
    """What there is beside a picture's tokens. rows: E×d; grids: as in `VisualTokens`; deepstack: E×d for each layer;
    tower: the tokens before the projector."""

    rows: Tensor | None = None
    grids: Sequence[Grid] = ()
    deepstack: Sequence[Tensor] = ()
    tower: TowerRows | None = None


def with_views(family: Family, seen: Seen, pictures: list[Picture]) -> list[Picture]:
    """The pictures with the means to see their blocks anew, where the pixels were kept."""
    if seen.values is None:
        return pictures
    return [
        replace(picture, anew=[partial(family.encode, seen, view) for view in views], square_only=family.square_only)
        for picture, views in zip(pictures, family.views(seen, pictures), strict=True)
    ]


def beside(pictures: Sequence[Picture], method: BeforeMethod) -> Extra:
    """What a method needs of pictures that share a budget: their tokens before the projector, or their blocks seen
    anew."""
    if "pixels" not in method.needs:
        return Extra(tower=_joined_rows(pictures))
    square = any(picture.square_only for picture in pictures)
    grids = method.choose_resolutions([grid for picture in pictures for grid in picture.grids], square)
    blocks = [block for picture in pictures for block in picture.anew]
    encoded = [block(grid) for block, grid in zip(blocks, grids, strict=True) if 0 not in grid]
    rows, *deepstack = (torch.cat(layer) for layer in zip(*encoded, strict=True))
    return Extra(rows, grids, deepstack)


def _joined_rows(pictures: Sequence[Picture]) -> TowerRows | None:
    """Those of several pictures as of one, where all have them."""
    towers = [picture.tower for picture in pictures if picture.tower is not None]
    if not towers or len(towers) < len(pictures):
        return None
    classes = [tower.cls for tower in towers if tower.cls is not None]
    with torch.enable_grad():
        rows, cls = torch.cat([tower.rows for tower in towers]), torch.cat(classes) if classes else None
    return replace(towers[0], rows=rows, cls=cls)
