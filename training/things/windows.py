"""Scenes and windows of scenes, drawn while training runs: pixels and what every patch shows.

A window is WINDOW×WINDOW patches of a scene. A token of a window costs less than one of a scene, since it attends to
fewer others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.render import GRID, PATCH, Drawing, render
from eadp.pocket.things.scene import SIGN, WORDS, Scene, Split, make_scene
from eadp.pocket.things.view import View
from training.things.styles import paint

WINDOW = 8
"""Patches along each side of a window."""

SIGN_LABEL = len(kinds())
NOTHING = SIGN_LABEL + 1
LABELS = NOTHING + 1
"""What a patch can show: a kind of thing, a sign, or nothing."""

NO_WORD = -100
"""The label of patches that show no sign, which the loss ignores."""


@dataclass(frozen=True)
class Patches:
    """A batch of B windows or scenes with n patches each.

    Attributes:
        pixels: B×3×h×w, in [0, 1].
        positions: B×n, the index of each patch in the GRID×GRID patches of its scene.
        labels: B×n, what each patch shows.
        words: B×n, the number of the word on the sign that a patch shows, or `NO_WORD`.
        offsets: B×n×2, the way from a patch to the centre of its thing, across and down, in patches; 0 for nothing.
        sizes: B×n, the longer side of the thing, in patches; 0 for nothing.
        held_out: B×n, whether a patch shows a thing in a style that training never shows.
        owners: B×n, the index in its scene of the thing that a patch shows; −1 for none.
        views: The B views of what can be said about the windows or scenes.
    """

    pixels: Tensor
    positions: Tensor
    labels: Tensor
    words: Tensor
    offsets: Tensor
    sizes: Tensor
    held_out: Tensor
    owners: Tensor
    views: tuple[View, ...]


def draw_scenes(split: Split, first: int, scenes: int, painted: bool = False) -> Patches:
    """Draw the whole scenes first, first + 1, …

    Args:
        split: The split.
        first: The number of the first scene.
        scenes: The number of scenes.
        painted: Draw things in styles that nobody drew.
    """
    made = [make_scene(split, index) for index in range(first, first + scenes)]
    drawings = [_paint(scene) if painted else render(scene) for scene in made]
    parts = [
        cut(describe(scene, drawing), drawing.pixels, 0, 0, GRID) for scene, drawing in zip(made, drawings, strict=True)
    ]
    views = [View(scene, drawing.visible) for scene, drawing in zip(made, drawings, strict=True)]
    return stack(parts, views)


def _paint(scene: Scene) -> Drawing:
    rng = np.random.default_rng((*scene.seed, 4))
    return render(scene, lambda thing: paint(thing, rng))


def drop_background(batch: Patches, kept: int) -> tuple[Patches, Tensor]:
    """Leave `kept` patches per window: those that show a thing first, the rest at random.

    Returns:
        The batch, with its pixels as they were, and the indices of the patches that are left, B×kept, ascending.
    """
    priority = torch.rand(batch.labels.shape) + (batch.labels != NOTHING)
    keep = priority.topk(kept, 1).indices.sort(1).values
    fields = {
        name: getattr(batch, name).gather(1, keep)
        for name in ("positions", "labels", "words", "sizes", "held_out", "owners")
    }
    offsets = batch.offsets.gather(1, keep[..., None].expand(-1, -1, 2))
    return replace(batch, offsets=offsets, **fields), keep


def augment(pixels: Tensor) -> Tensor:
    """Change light, contrast, colours and sharpness of B×3×h×w images at random, so that a style is not a kind."""
    size = (len(pixels), 1, 1, 1)

    def draw(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape or size)

    grey = pixels.mean(1, keepdim=True)
    pixels = torch.lerp(grey, pixels, torch.where(draw(0, 1) < 0.15, draw(0, 1), draw(0.7, 1.4)))
    pixels = torch.where(draw(0, 1) < 0.4, _turn_hues(pixels, draw(-0.6, 0.6)), pixels)
    # Gains per channel change colours: a red apple may be orange, and its shape has to decide.
    pixels = pixels * draw(0.75, 1.25, len(pixels), 3, 1, 1)
    middle = pixels.mean((1, 2, 3), keepdim=True)
    pixels = middle + (pixels - middle) * draw(0.65, 1.3) + draw(-0.12, 0.12)
    blurred = F.avg_pool2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    # Beyond 0, this is blurred; below, edges are sharper than they were drawn.
    pixels = torch.where(draw(0, 1) < 0.4, torch.lerp(pixels, blurred, draw(-0.8, 1)), pixels)
    noise = torch.randn(pixels.shape) * 0.05 * (draw(0, 1) < 0.3)
    return (pixels + noise).clamp(0, 1)


def _turn_hues(pixels: Tensor, angle: Tensor) -> Tensor:
    """Turn the hues of B×3×h×w images by angles in radians, B×1×1×1, without a change of brightness."""
    brightness = (pixels * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    # The two axes of colour: from green to red, and from blue to yellow.
    red, _, blue = (pixels - brightness).split(1, 1)
    turned_red = angle.cos() * red - angle.sin() * blue
    turned_blue = angle.sin() * red + angle.cos() * blue
    green = -(0.299 * turned_red + 0.114 * turned_blue) / 0.587
    return brightness + torch.cat((turned_red, green, turned_blue), 1)


def cut(drawn: tuple[NDArray, ...], pixels: NDArray, top: int, left: int, side: int) -> tuple[NDArray, ...]:
    """Cut side×side patches from a scene: its pixels, the positions of the patches, and what is known of each."""
    rows = slice(top * PATCH, (top + side) * PATCH)
    columns = slice(left * PATCH, (left + side) * PATCH)
    down, across = np.mgrid[top : top + side, left : left + side]
    positions = (down * GRID + across).ravel()
    return pixels[rows, columns], positions, *(values[positions] for values in drawn)


def stack(parts: list[tuple[NDArray, ...]], views: list[View]) -> Patches:
    pixels, positions, labels, words, offsets, sizes, held_out, owners = (
        torch.from_numpy(np.stack(values)) for values in zip(*parts, strict=True)
    )
    pixels = pixels.permute(0, 3, 1, 2).float() / 255
    return Patches(pixels, positions, labels, words, offsets, sizes, held_out, owners, tuple(views))


def describe(scene: Scene, drawing: Drawing) -> tuple[NDArray, ...]:
    """Look up, for every patch of a scene: label, word, way to the centre, size, whether it is held out, owner."""
    things, owners = scene.things, drawing.owners.astype(np.int64)
    # Owner −1 is the last entry of each table.
    label = [SIGN_LABEL if thing.kind == SIGN else thing.kind for thing in things]
    word = [WORDS.index(thing.word) if thing.kind == SIGN else NO_WORD for thing in things]
    held_out = [thing.is_held_out for thing in things]
    size = np.array([*(max(thing.width, thing.height) for thing in things), 0], np.float32) / PATCH
    centre = np.array([*(thing.centre for thing in things), (0.0, 0.0)], np.float32) / PATCH
    positions = np.arange(GRID * GRID)
    own = np.stack((positions % GRID, positions // GRID), -1).astype(np.float32) + np.float32(0.5)
    offset = np.where(owners[:, None] >= 0, centre[owners] - own, np.float32(0))
    tables = (np.array([*label, NOTHING]), np.array([*word, NO_WORD]), np.array([*held_out, False]))
    return tables[0][owners], tables[1][owners], offset, size[owners], tables[2][owners], owners
