"""What methods need of the vision side: its attention, its rows before the projector, and blocks encoded again.

The tower keeps its attention implementation. Probes read the queries and keys of the layers that the method names, and
sum up their attention in chunks. It is assigned to the tokens of each image once the layouts are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from eadp.core import Grid, TowerAttention, trace
from eadp.methods import BeforeMethod
from eadp.models.adapter import FamilyAdapter
from eadp.models.geometry import Arrange, FamilyGeometry
from eadp.models.layout import ImageLayout, Placeholders
from eadp.models.vision_call import BlockPixels, EncodedImage, TowerLayer, TowerRows, VisionCall
from eadp.runtime.probe import AttentionInputs, Report, can_join, join_inputs


class VisionSide(Protocol):
    """What selection and merging ask of a model's vision side. A `FamilyAdapter` is one."""

    @property
    def square_grids_only(self) -> bool:
        """Whether blocks can be encoded again only at square grids."""

    def arrange(self, layout: ImageLayout, cells: Tensor) -> Tensor:
        """Arrange values of tower cells by token: crops×cells×c → N×c."""

    def project(self, rows: Tensor) -> Tensor:
        """Run the projector on rows of the tower: K×w → K×d."""

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        """Encode a block again at another resolution."""


class TowerRecording:
    """The attention of the tower's layers that a method asks for, in one call of the vision side."""

    def __init__(self, adapter: FamilyAdapter, method: BeforeMethod) -> None:
        """Begin a recording.

        Args:
            adapter: The adapter of the model.
            method: The method, which says what to record.
        """
        self.has_cls = adapter.has_cls
        self.needs_received = needs_received(adapter, method)
        self.layers = recorded_layers(adapter, method)
        self.depth = len(adapter.tower_attention()) if self.layers else 0
        self._calls: dict[int, list[TowerLayer | AttentionInputs]] = {layer: [] for layer in self.layers}

    def report_at(self, layer: int) -> Report | None:
        """What records the attention inputs of a layer; None where the method does not ask for it."""
        return partial(self._record, layer) if layer in self._calls else None

    def _record(self, layer: int, inputs: AttentionInputs) -> None:
        # On the CPU at once, so that the inputs can be let go; on a device later, for all calls of a layer at once.
        is_on_cpu = inputs.key.device.type == "cpu"
        self._calls[layer].append(self._compute(layer, inputs) if is_on_cpu else inputs)

    @trace.part("relevance")
    def _compute(self, layer: int, inputs: AttentionInputs) -> TowerLayer:
        return compute_tower_layer(inputs, layer, self.depth, self.has_cls, self.needs_received)

    def recorded(self) -> list[TowerLayer]:
        """What was recorded, layer by layer.

        Raises:
            RuntimeError: If a layer was not called.
        """
        if silent := [layer for layer, calls in self._calls.items() if not calls]:
            raise RuntimeError(
                f"the vision tower did not call its attention layers {silent}, so their attention is unknown"
            )
        return [self._join(layer) for layer in self.layers]

    def _join(self, layer: int) -> TowerLayer:
        done = [call for call in self._calls[layer] if isinstance(call, TowerLayer)]
        inputs = [call for call in self._calls[layer] if isinstance(call, AttentionInputs)]
        if inputs and can_join(inputs):
            return self._compute(layer, join_inputs(inputs)).as_one_sequence()
        return join_calls(done or [self._compute(layer, each) for each in inputs])


def check_tower(adapter: FamilyAdapter, method: BeforeMethod) -> None:
    """Check that the vision tower has what a method needs of it.

    Raises:
        ValueError: If the method needs attention, and the tower has none.
    """
    if "vision_attention" in method.needs and not adapter.tower_attention():
        raise ValueError(
            f"{method.name} needs the attention of the vision tower, but {type(adapter.tower).__name__} has none; "
            "choose a method that does not, such as eadp, cdpruner or divprune"
        )


def recorded_layers(adapter: FamilyAdapter, method: BeforeMethod) -> Sequence[int]:
    """The layers of the tower whose attention a method asks for, counted from 0."""
    if "vision_attention" not in method.needs:
        return ()
    return method.vision_layers(len(adapter.tower_attention()), adapter.config.model_type)


def needs_pixels(method: BeforeMethod) -> bool:
    """Whether a method needs the pixels of the images, or what is found in them."""
    return "pixels" in method.needs or "padding" in method.needs


def needs_received(adapter: FamilyAdapter, method: BeforeMethod) -> bool:
    """Whether a method uses the attention that each cell receives, and not only that of the CLS token."""
    return not (method.uses_cls_attention and adapter.has_cls)


def compute_tower_layer(
    inputs: AttentionInputs, layer: int, depth: int, has_cls: bool, needs_received: bool
) -> TowerLayer:
    """Compute what methods use of one call of a tower's attention.

    Args:
        inputs: The queries and keys of the call.
        layer: The layer, counted from 0.
        depth: The number of layers of the tower.
        has_cls: Whether the sequences begin with a CLS token.
        needs_received: Whether to compute the attention that each cell receives.
    """
    first_cell, received = int(has_cls), None
    keys = inputs.key.transpose(1, 2)
    if needs_received:
        # On the CPU one sequence at a time: all queries of 64 frames at once would take much memory.
        is_on_cpu = keys.device.type == "cpu"
        parts = [inputs.for_row(row) for row in range(len(keys))] if is_on_cpu else [inputs]
        sums = [part.received() for part in parts]
        received = ((sums[0] if len(sums) == 1 else torch.cat(sums)) * inputs.query.shape[2])[:, first_cell:]
    keys = keys[:, first_cell:]
    if not has_cls:
        return TowerLayer(layer, depth, keys, None, received)
    query = torch.zeros(1, dtype=torch.long)
    cls, full_width = inputs.rows(query)[:, :, 0].mean(1), inputs.as_one_head().rows(query)[:, 0, 0]
    return TowerLayer(layer, depth, keys, cls[:, first_cell:], received, full_width[:, first_cell:])


def join_calls(calls: list[TowerLayer]) -> TowerLayer:
    """Join the calls of one layer. A tower with several images per sequence may call it for each image or window."""
    if len(calls) == 1:
        return calls[0]
    received = torch.cat([call.received for call in calls if call.received is not None], dim=1)
    return replace(calls[0], keys=torch.cat([call.keys for call in calls], dim=1), received=received)


def encoded_images(
    adapter: FamilyAdapter, call: VisionCall, output: Any, placeholders: Placeholders, method: BeforeMethod
) -> list[EncodedImage]:
    """Collect what a method needs of the images of one call of the vision side.

    Args:
        adapter: The adapter of the model.
        call: The call.
        output: Its output.
        placeholders: Where the placeholders of its modality are.
        method: The method, whose `needs` say what to collect.

    Returns:
        One entry per image or clip, prompt by prompt.
    """
    layouts = adapter.geometry.layouts(call, placeholders)
    states = adapter.tower_states(call, output)
    images = [
        EncodedImage(layout, part, attention)
        for layout, part, attention in zip(
            layouts,
            [None] * len(layouts) if states is None else states.split([layout.crops for layout in layouts]),
            token_attention(adapter.geometry, call, layouts, adapter.arrange),
            strict=True,
        )
    ]
    if "tower_rows" in method.needs:
        # A selection needs no gradients, but merged rows are computed from these.
        with torch.enable_grad():
            rows = adapter.tower_rows(call, output, layouts)
        images = [replace(image, tower_rows=each) for image, each in zip(images, rows, strict=True)]
    if "tower_features" in method.needs:
        features = adapter.geometry.tokens_from_cells(call, layouts, adapter.tower_cells(call, output), adapter.arrange)
        images = [replace(image, tower_features=each) for image, each in zip(images, features, strict=True)]
    if "padding" in method.needs:
        padding = adapter.geometry.padding(call, layouts)
        images = [replace(image, padding=each) for image, each in zip(images, padding, strict=True)]
    if "pixels" in method.needs:
        pixels = adapter.geometry.block_pixels(call, layouts)
        images = [
            replace(image, pixels=BlockPixels(call, blocks)) for image, blocks in zip(images, pixels, strict=True)
        ]
    return images


def token_attention(
    geometry: FamilyGeometry, call: VisionCall, layouts: Sequence[ImageLayout], arrange: Arrange | None = None
) -> list[list[TowerAttention]]:
    """Assign the recorded attention of a call to the tokens of its images.

    Args:
        geometry: The geometry of the family.
        call: The call, with its recorded attention.
        layouts: The layouts of its images.
        arrange: What arranges the cells of one image. None: the geometry does.

    Returns:
        For each image, one entry per recorded layer.
    """

    lengths = [len(layout) for layout in layouts]

    def by_token(rows: Tensor) -> Tensor:
        return geometry.join_tokens(call, layouts, rows.flatten(2), arrange)

    def by_image(values: Tensor | None) -> Sequence[Tensor] | Sequence[None]:
        return [None] * len(layouts) if values is None else values.split(lengths)

    attention: list[list[TowerAttention]] = [[] for _ in layouts]
    for layer in call.attention:
        cls_rows, full_rows, received_rows = (
            None if each is None else by_token(each[..., None])[:, 0]
            for each in (layer.cls, layer.cls_full_width, layer.received)
        )
        if received_rows is not None:
            received_rows = received_rows / _per_token(lengths, received_rows)
        columns = (by_image(each) for each in (by_token(layer.keys), cls_rows, received_rows, full_rows))
        for image, keys, cls, received, full in zip(attention, *columns, strict=True):
            image.append(
                TowerAttention(
                    layer.layer,
                    layer.depth,
                    cast(Tensor, keys).unflatten(1, layer.keys.shape[2:]),
                    cls,
                    received,
                    full,
                    geometry.model_type,
                )
            )
    return attention


def _per_token(lengths: Sequence[int], like: Tensor) -> float | Tensor:
    """The number of tokens of each token's image: one number if all images have as many, else one per token."""
    if len(set(lengths)) == 1:
        return lengths[0]
    counts = torch.tensor(lengths)
    return counts.repeat_interleave(counts).to(like)


def join_attention(images: Sequence[EncodedImage]) -> Sequence[TowerAttention]:
    """Join the attention of images that share a budget, as if they were one."""
    if len(images) == 1:
        return images[0].attention
    total = sum(map(len, images))
    joined = []
    for layers in zip(*(image.attention for image in images), strict=True):
        cls = [layer.cls for layer in layers if layer.cls is not None]
        full = [layer.cls_full_width for layer in layers if layer.cls_full_width is not None]
        received = [layer.received * (len(layer.keys) / total) for layer in layers if layer.received is not None]
        joined.append(
            replace(
                layers[0],
                keys=torch.cat([layer.keys for layer in layers]),
                cls=torch.cat(cls) if cls else None,
                received=torch.cat(received) if received else None,
                cls_full_width=torch.cat(full) if full else None,
            )
        )
    return joined


def join_tower_rows(images: Sequence[EncodedImage]) -> TowerRows | None:
    """Join the rows before the projector of images that share a budget; None unless all have them."""
    towers = [image.tower_rows for image in images if image.tower_rows is not None]
    if not towers or len(towers) < len(images):
        return None
    if len(towers) == 1:
        return towers[0]
    classes = [tower.cls for tower in towers if tower.cls is not None]
    with torch.enable_grad():
        return TowerRows(torch.cat([tower.rows for tower in towers]), torch.cat(classes) if classes else None)


def join_per_token(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Join what is known per token of images that share a budget; None unless it is known for all of them."""
    known = [part for part in parts if part is not None]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(known) if known and len(known) == len(parts) else None


@dataclass(frozen=True)
class DownsampledBlocks:
    """The blocks of images, encoded again at another resolution.

    Attributes:
        rows: E×d, for the language model.
        grids: Rows and columns of each block.
        deepstack: E×d for each DeepStack layer.
    """

    rows: Tensor
    grids: Sequence[Grid]
    deepstack: Sequence[Tensor] = ()


def encode_again(vision: VisionSide, images: Sequence[EncodedImage], method: BeforeMethod) -> DownsampledBlocks:
    """Run the vision side again on the blocks of images, at the resolutions that a method asks for.

    Args:
        vision: The vision side of the model.
        images: Images that share a budget, with their pixels.
        method: A method that needs pixels.
    """
    grids = method.choose_resolutions(
        [grid for image in images for grid in image.layout.grids], vision.square_grids_only
    )
    blocks = [
        (image.pixels.call, block) for image in images if image.pixels is not None for block in image.pixels.blocks
    ]
    encoded = [vision.encode(*block, grid) for block, grid in zip(blocks, grids, strict=True) if 0 not in grid]
    rows, *deepstack = (torch.cat(layer) for layer in zip(*encoded, strict=True))
    return DownsampledBlocks(rows, grids, deepstack)
