"""Clips, drawn while training runs: what the model for clips sees of them, with a question about each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import CLIPVisionModel

from eadp.pocket.things.clip_model import FRAME_GRID, POOL
from eadp.pocket.things.clips import Clip, make_clip
from eadp.pocket.things.questions import Question
from eadp.pocket.things.render import GRID, render_clip
from eadp.pocket.things.samples import CLIP_FRAMES
from eadp.pocket.things.scene import Split
from training.things import tower
from training.things.mentions import UNKNOWN

FRAMES = CLIP_FRAMES
CONTEXT = 40
"""Tokens of each frame that the tower encodes beside the kept ones. It was trained with most background dropped."""

SHOWN_PRIORITY, ACTOR_PRIORITY = 0.3, 0.6
"""What is added to the random priorities, from 0 to 1, of tokens that show a thing, and of those that show the thing
that the question is about."""


@dataclass(frozen=True)
class Clips:
    """A batch of B clips of FRAMES frames, whose frames have n tokens each.

    Attributes:
        pixels: B×FRAMES×3×h×w, in [0, 1].
        shown: B×FRAMES×n, whether a token shows a thing.
        actor: B×FRAMES×n, whether it shows the thing that the question is about.
        questions: The question about each clip; its kind is the event.
        places: Per clip, the column and row of patches of the thing that the answer names; unknown if it names none.
    """

    pixels: Tensor
    shown: Tensor
    actor: Tensor
    questions: tuple[Question, ...]
    places: tuple[tuple[int, int], ...]


def draw_clips(split: Split, first: int, count: int) -> Clips:
    """Draw the clips first, first + 1, …"""
    pixels, shown, actor, clips = [], [], [], []
    for index in range(first, first + count):
        clip = make_clip(split, index, FRAMES)
        drawings = render_clip(clip.frames)
        owners = np.stack([drawing.owners for drawing in drawings])
        last = np.array(
            [-2 if box is None else len(f.things) - 1 for f, box in zip(clip.frames, clip.boxes, strict=True)]
        )
        pixels.append(np.stack([drawing.pixels for drawing in drawings]))
        shown.append(owners >= 0)
        actor.append(owners == last[:, None])
        clips.append(clip)
    return Clips(
        pixels=torch.from_numpy(np.stack(pixels)).permute(0, 1, 4, 2, 3).float() / 255,
        shown=_any_of_cell(np.stack(shown)),
        actor=_any_of_cell(np.stack(actor)),
        questions=tuple(Question(clip.event, clip.question, clip.answer, ()) for clip in clips),
        places=tuple(map(_answer_place, clips)),
    )


def _any_of_cell(patches: np.ndarray) -> Tensor:
    """Return, for tokens of POOL×POOL patches, whether any patch is true: …×GRID² becomes …×FRAME_GRID²."""
    cells = torch.from_numpy(patches).unflatten(-1, (FRAME_GRID, POOL, FRAME_GRID, POOL))
    return cells.any(-1).any(-2).flatten(-2)


def _answer_place(clip: Clip) -> tuple[int, int]:
    if clip.event == "moves":
        return UNKNOWN, UNKNOWN
    top, left, bottom, right = next(box for box in clip.boxes if box is not None)
    middle = ((left + right) / 2, (top + bottom) / 2)
    across, down = (min(max(int(each * GRID), 0), GRID - 1) for each in middle)
    return across, down


def choose_tokens(clips: Clips, count: int) -> Tensor:
    """Choose tokens at random, those that show a thing and the one in question more often: B×count, ascending."""
    priority = torch.rand(clips.shown.shape) + SHOWN_PRIORITY * clips.shown + ACTOR_PRIORITY * clips.actor
    return priority.flatten(1).topk(count, 1).indices.sort(1).values


def encode_clips(encoder: CLIPVisionModel, clips: Clips, keep: Tensor) -> Tensor:
    """Encode the kept tokens of clips: pooled hidden states, B×count×d.

    Of each frame, the tower sees the patches of the kept tokens and some others, the same number for all frames.
    """
    batch, frames, cells = clips.shown.shape
    chosen = torch.zeros(batch * frames * cells)
    rows = (torch.arange(batch)[:, None] * frames * cells + keep).flatten()
    chosen[rows] = 1
    chosen = chosen.view(batch * frames, cells)
    most = min(cells, int(chosen.sum(1).max()) + CONTEXT)
    # Those that show a thing come before the background, and the kept ones before both.
    priority = 2 * chosen + clips.shown.flatten(0, 1) + torch.rand(chosen.shape)
    seen = priority.topk(most, 1).indices.sort(1).values
    patches = _patches_of_cells(seen)
    hidden = tower.encode(encoder, clips.pixels.flatten(0, 1), patches, patches)[:, 1:]
    pooled = hidden.unflatten(1, (most, POOL * POOL)).mean(2)
    places = torch.zeros(batch * frames, cells, dtype=torch.long).scatter(
        1, seen, torch.arange(most).expand(len(seen), -1)
    )
    frame = rows // cells
    return pooled[frame, places[frame, rows % cells]].view(batch, -1, pooled.shape[-1])


def _patches_of_cells(cells: Tensor) -> Tensor:
    """Return the patches of tokens, POOL² for each: b×n becomes b×(n·POOL²)."""
    top, left = cells // FRAME_GRID * POOL, cells % FRAME_GRID * POOL
    offsets = torch.tensor([down * GRID + across for down in range(POOL) for across in range(POOL)])
    return (top[..., None] * GRID + left[..., None] + offsets).flatten(1)
