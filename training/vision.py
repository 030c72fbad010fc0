"""Stage 1: the vision tower learns what every patch shows, and words and patches meet in CLIP's space."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionModel
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from eadp.pocket.model import GRID, WIDTH, ClipText, see
from eadp.pocket.text import BOS, EOS, SPECIAL
from eadp.pocket.world import COLOURS, SHAPES, WRITINGS
from eadp.pocket.world.scene import MOST_THINGS
from training.data import Corpus

BATCH = 32
ASKED = 1
"""Questions a scene that words and patches are matched on."""

FEW = 88
"""Patches seen a scene in the first part of the stage: all that show a thing, and some background."""

INSIDE = 0.6
"""Cosine that a pointing word should reach on what it points at; elsewhere, and for other words, it should be 0."""

_MEAN = torch.tensor(OPENAI_CLIP_MEAN).view(3, 1, 1) * 255
_STD = torch.tensor(OPENAI_CLIP_STD).view(3, 1, 1) * 255


class PatchHeads(nn.Module):
    """What is asked of each patch: colour, shape, writing, how many things of this shape there are, and the centre."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (len(COLOURS) + 1, len(SHAPES) + 1, len(WRITINGS), 5, 2)
        self.linear = nn.Linear(WIDTH, sum(self.sizes))

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return self.linear(hidden).split(self.sizes, -1)


def pixels(images: np.ndarray) -> Tensor:
    """As the processor makes them: B×3×SIDE×SIDE, CLIP's normalisation."""
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() - _MEAN) / _STD


def vision_losses(
    tower: CLIPVisionModel, clip: ClipText, heads: PatchHeads, corpus: Corpus, rows: np.ndarray, few: bool
) -> dict[str, Tensor]:
    owners = torch.from_numpy(corpus.owners[rows]).long()
    keep = _keep(owners) if few else None
    hidden = see(tower, pixels(corpus.images[rows]), keep)
    if keep is not None:
        owners = owners.gather(1, keep)
    things = torch.from_numpy(corpus.things[rows]).long()
    normed = tower.post_layernorm(hidden)
    losses = patch_losses(heads, normed[:, 1:], owners, things)
    asked = np.random.default_rng(rows[:2]).permutation(corpus.questions.shape[1])[:ASKED]
    questions = torch.from_numpy(corpus.questions[rows][:, asked]).long()
    pointers = torch.from_numpy(corpus.pointers[rows][:, asked]).long()
    losses["words"] = 6 * word_loss(clip, normed, owners, questions, pointers)
    return losses


def patch_losses(heads: PatchHeads, hidden: Tensor, owners: Tensor, things: Tensor) -> dict[str, Tensor]:
    """hidden B×n×d, owners B×n, things B×8×fields."""
    colour, shape, writing, alike, centre = heads(hidden)
    shown = owners >= 0
    labels = things.gather(1, owners.clamp(min=0)[..., None].expand(-1, -1, things.shape[-1]))
    none = ~shown
    colour_label = labels[..., 0].masked_fill(none, len(COLOURS))
    shape_label = labels[..., 1].masked_fill(none, len(SHAPES))
    written = shown & (labels[..., 2] >= 0)
    place = labels[..., 3:5].float() / GRID - 0.5
    losses = {
        "colour": F.cross_entropy(colour.flatten(0, 1), colour_label.flatten()),
        "shape": F.cross_entropy(shape.flatten(0, 1), shape_label.flatten()),
        "alike": 0.5 * F.cross_entropy(alike[shown], labels[..., 5][shown]),
        "centre": 10 * F.mse_loss(centre[shown], place[shown]),
    }
    if written.any():
        losses["writing"] = 0.5 * F.cross_entropy(writing[written], labels[..., 2][written])
    return losses


def word_loss(clip: ClipText, normed: Tensor, owners: Tensor, questions: Tensor, pointers: Tensor) -> Tensor:
    """Cosines of every word with every patch, and of the whole question with the patches it is about.

    normed B×(1+n)×d with CLS first; questions, pointers B×Q×L. Inside and outside weigh the same for a pointing word.
    """
    batch, asked = questions.shape[:2]
    longest = int((questions > 0).sum(-1).max())
    ids, bits = _with_ends(questions[..., :longest].flatten(0, 1), pointers[..., :longest].flatten(0, 1))
    words = F.normalize(clip.words(ids), dim=-1).view(batch, asked * ids.shape[1], -1)
    visual = F.normalize(clip.visual_projection(normed), dim=-1)
    cosine = words @ visual[:, 1:].mT
    number = torch.arange(MOST_THINGS)
    bits = bits.view(batch, -1)
    pointed = (bits[..., None] >> number) & 1
    one_hot = F.one_hot(owners.clamp(min=0), MOST_THINGS) * (owners >= 0)[..., None]
    inside = (pointed.float() @ one_hot.float().mT) > 0
    error = torch.where(inside, (INSIDE - cosine).clamp(min=0), cosine).square()
    real = (ids != 0).view(batch, -1)
    points = real & inside.any(-1)
    flat = (error.mean(-1) * real).sum() / real.sum()
    within = (error * inside).sum(-1) / inside.sum(-1).clamp(min=1)
    loss = flat + (within * points).sum() / points.sum().clamp(min=1)
    summary = (words @ visual[:, 0, :, None]).squeeze(-1)
    target = INSIDE * points.float()
    return loss + 0.5 * ((summary - target).square() * real).sum() / real.sum()


def _keep(owners: Tensor) -> Tensor:
    """B×FEW patches in order: those that show something first, the rest at random."""
    priority = torch.rand(owners.shape) + (owners >= 0)
    return priority.topk(FEW, 1).indices.sort(1).values


def _with_ends(ids: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    """BOS in front and EOS behind; EOS stands for the question and points at all that its words point at."""
    rows = len(ids)
    lengths = (ids > 0).sum(-1)
    zeros = torch.zeros(rows, 1, dtype=torch.long)
    ids = torch.cat((zeros + SPECIAL.index(BOS), ids, zeros), 1)
    ids[torch.arange(rows), lengths + 1] = SPECIAL.index(EOS)
    together = torch.zeros(rows, dtype=torch.long)
    for column in bits.T:
        together |= column
    bits = torch.cat((zeros, bits, zeros), 1)
    bits[torch.arange(rows), lengths + 1] = together
    return ids, bits
