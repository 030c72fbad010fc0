"""Stage 1: the vision tower learns what every patch shows, and CLIP aligns words with patches."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionModel
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from eadp.pocket.model import GRID, WIDTH, ClipText, encode_patches
from eadp.pocket.text import BOS, EOS, SPECIAL
from eadp.pocket.world import COLOURS, SHAPES, WRITINGS
from eadp.pocket.world.scene import MAX_THINGS
from training.data import Corpus

BATCH = 32
QUESTIONS_PER_SCENE = 1
"""Questions per scene whose words are aligned with patches."""

SPARSE_PATCHES = 88
"""Patches per scene in the first part of the stage: all that show a thing, and some background."""

TARGET_COSINE = 0.6
"""Cosine of a word with the patches of the things that it names. With all other patches, the cosine should be 0."""

_MEAN = torch.tensor(OPENAI_CLIP_MEAN).view(3, 1, 1) * 255
_STD = torch.tensor(OPENAI_CLIP_STD).view(3, 1, 1) * 255


class PatchHeads(nn.Module):
    """Predicts, per patch, the thing's colour, shape, writing, the number of things of its shape, and its centre."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (len(COLOURS) + 1, len(SHAPES) + 1, len(WRITINGS), 5, 2)
        self.linear = nn.Linear(WIDTH, sum(self.sizes))

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return self.linear(hidden).split(self.sizes, -1)


def normalize_pixels(images: np.ndarray) -> Tensor:
    """Normalize images as CLIP's processor does: B×SIDE×SIDE×3 → B×3×SIDE×SIDE."""
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() - _MEAN) / _STD


def vision_losses(
    tower: CLIPVisionModel, clip: ClipText, heads: PatchHeads, corpus: Corpus, rows: np.ndarray, sparse: bool
) -> dict[str, Tensor]:
    """Compute all losses of the stage on some scenes.

    Args:
        tower: The vision tower.
        clip: The text encoder.
        heads: The heads per patch.
        corpus: The training scenes.
        rows: Indices of the scenes.
        sparse: Encode only `SPARSE_PATCHES` patches per scene.
    """
    owners = torch.from_numpy(corpus.owners[rows]).long()
    keep = _choose_patches(owners) if sparse else None
    hidden = encode_patches(tower, normalize_pixels(corpus.images[rows]), keep)
    if keep is not None:
        owners = owners.gather(1, keep)
    things = torch.from_numpy(corpus.things[rows]).long()
    normed = tower.post_layernorm(hidden)
    losses = patch_losses(heads, normed[:, 1:], owners, things)
    picked = np.random.default_rng(rows[:2]).permutation(corpus.questions.shape[1])[:QUESTIONS_PER_SCENE]
    questions = torch.from_numpy(corpus.questions[rows][:, picked]).long()
    pointers = torch.from_numpy(corpus.pointers[rows][:, picked]).long()
    losses["words"] = 6 * word_loss(clip, normed, owners, questions, pointers)
    return losses


def patch_losses(heads: PatchHeads, hidden: Tensor, owners: Tensor, things: Tensor) -> dict[str, Tensor]:
    """Compute the losses of the heads, from hidden states, B×n×d, owners, B×n, and things, B×MAX_THINGS×fields."""
    colour, shape, writing, alike, centre = heads(hidden)
    shown = owners >= 0
    labels = things.gather(1, owners.clamp(min=0)[..., None].expand(-1, -1, things.shape[-1]))
    none = ~shown
    colour_label = labels[..., 0].masked_fill(none, len(COLOURS))
    shape_label = labels[..., 1].masked_fill(none, len(SHAPES))
    written = shown & (labels[..., 2] >= 0)
    position = labels[..., 3:5].float() / GRID - 0.5
    losses = {
        "colour": F.cross_entropy(colour.flatten(0, 1), colour_label.flatten()),
        "shape": F.cross_entropy(shape.flatten(0, 1), shape_label.flatten()),
        "alike": 0.5 * F.cross_entropy(alike[shown], labels[..., 5][shown]),
        "centre": 10 * F.mse_loss(centre[shown], position[shown]),
    }
    if written.any():
        losses["writing"] = 0.5 * F.cross_entropy(writing[written], labels[..., 2][written])
    return losses


def word_loss(clip: ClipText, normed: Tensor, owners: Tensor, questions: Tensor, pointers: Tensor) -> Tensor:
    """Compute the loss of the cosines of words with patches, and of words with CLS.

    For a word that names things, the patches of the things and all other patches have the same weight. The EOS token
    stands for the whole question.

    Args:
        clip: The text encoder.
        normed: B×(1+n)×d, the tower's output after its last norm, CLS first.
        owners: B×n, the thing that each patch shows; −1 for none.
        questions: B×Q×L, token ids.
        pointers: B×Q×L, bit masks of the things that each token names.
    """
    batch, count = questions.shape[:2]
    longest = int((questions > 0).sum(-1).max())
    ids, bits = _add_special_tokens(questions[..., :longest].flatten(0, 1), pointers[..., :longest].flatten(0, 1))
    words = F.normalize(clip.encode_tokens(ids), dim=-1).view(batch, count * ids.shape[1], -1)
    visual = F.normalize(clip.visual_projection(normed), dim=-1)
    cosine = words @ visual[:, 1:].mT
    number = torch.arange(MAX_THINGS)
    bits = bits.view(batch, -1)
    named = (bits[..., None] >> number) & 1
    one_hot = F.one_hot(owners.clamp(min=0), MAX_THINGS) * (owners >= 0)[..., None]
    inside = (named.float() @ one_hot.float().mT) > 0
    error = torch.where(inside, (TARGET_COSINE - cosine).clamp(min=0), cosine).square()
    real = (ids != 0).view(batch, -1)
    points = real & inside.any(-1)
    flat = (error.mean(-1) * real).sum() / real.sum()
    within = (error * inside).sum(-1) / inside.sum(-1).clamp(min=1)
    loss = flat + (within * points).sum() / points.sum().clamp(min=1)
    summary = (words @ visual[:, 0, :, None]).squeeze(-1)
    target = TARGET_COSINE * points.float()
    return loss + 0.5 * ((summary - target).square() * real).sum() / real.sum()


def _choose_patches(owners: Tensor) -> Tensor:
    """Choose B×SPARSE_PATCHES patches: those that show a thing first, the rest at random. Indices are ascending."""
    priority = torch.rand(owners.shape) + (owners >= 0)
    return priority.topk(SPARSE_PATCHES, 1).indices.sort(1).values


def _add_special_tokens(ids: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    """Add BOS before and EOS after each question. EOS names all things that the words of the question name."""
    rows = len(ids)
    lengths = (ids > 0).sum(-1)
    zeros = torch.zeros(rows, 1, dtype=torch.long)
    ids = torch.cat((zeros + SPECIAL.index(BOS), ids, zeros), 1)
    ids[torch.arange(rows), lengths + 1] = SPECIAL.index(EOS)
    union = torch.zeros(rows, dtype=torch.long)
    for column in bits.T:
        union |= column
    bits = torch.cat((zeros, bits, zeros), 1)
    bits[torch.arange(rows), lengths + 1] = union
    return ids, bits
