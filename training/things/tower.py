"""Stage 1: the vision tower learns what every patch shows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionModel
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from eadp.pocket.things.model import WIDTH
from eadp.pocket.things.render import GRID
from eadp.pocket.things.scene import WORDS
from training.things import places
from training.things.windows import LABELS, NO_WORD, NOTHING, Patches

FEWEST_PATCHES = 3
"""Patches of a thing that a window must show for its vote to count."""

_MEAN = torch.tensor(OPENAI_CLIP_MEAN).view(3, 1, 1)
_STD = torch.tensor(OPENAI_CLIP_STD).view(3, 1, 1)

PLACE_WEIGHT = 6.0
"""Weight of the loss of places. With a third of it, the tower learns them much more slowly."""

NEAR = 1 / GRID
"""A thing is found if the mean of what its patches say of its centre is at most this far from it, across and down."""


class PatchHeads(nn.Module):
    """Predicts, per patch, what it shows, the word on a sign, the way to the thing's centre, its size and its place."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (LABELS, len(WORDS), 3, places.NUMBERS)
        self.linear = nn.Linear(WIDTH, sum(self.sizes))

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return self.linear(hidden).split(self.sizes, -1)


def encode(tower: CLIPVisionModel, pixels: Tensor, positions: Tensor, keep: Tensor | None = None) -> Tensor:
    """Encode windows or scenes with the layers that LLaVA reads, without the cost of the last layer.

    Args:
        tower: The vision tower.
        pixels: B×3×h×w, in [0, 1].
        positions: B×n, the index of each patch in the patches of its scene.
        keep: B×n, the patches of the windows to encode; None for all.

    Returns:
        B×(1+n)×d, hidden state −2, CLS first. CLIP compares it with words after `tower.post_layernorm`.
    """
    embeddings = tower.embeddings
    patches = embeddings.patch_embedding((pixels - _MEAN) / _STD).flatten(2).mT
    if keep is not None:
        patches = patches.gather(1, keep[..., None].expand(-1, -1, patches.shape[-1]))
    places = embeddings.position_embedding.weight
    first = (embeddings.class_embedding + places[0]).expand(len(pixels), 1, -1)
    hidden = torch.cat((first, patches + places[positions + 1]), 1)
    hidden = tower.pre_layrnorm(hidden)
    for layer in tower.encoder.layers[:-1]:
        hidden = layer(hidden, attention_mask=None)
    return hidden


def patch_losses(heads: PatchHeads, normed: Tensor, batch: Patches) -> dict[str, Tensor]:
    """Compute the losses of the heads on encoded patches, B×n×d."""
    label, word, outline, place = heads(normed)
    losses = {"label": F.cross_entropy(label.flatten(0, 1), batch.labels.flatten(), label_smoothing=0.02)}
    shown = batch.labels != NOTHING
    outlines = torch.cat((batch.offsets, batch.sizes[..., None]), -1)
    losses["outline"] = 0.1 * F.smooth_l1_loss(outline[shown], outlines[shown])
    numbers = places.as_numbers(places.outlines_of(batch.positions, batch.offsets, batch.sizes))
    errors = (place - numbers).square().mean(-1)
    # Things are half of it, however much background there is.
    losses["place"] = PLACE_WEIGHT * (errors[shown].mean() + errors[~shown].mean()) / 2
    written = batch.words != NO_WORD
    if written.any():
        losses["word"] = F.cross_entropy(word[written], batch.words[written])
    return losses


class Tally:
    """Counts of right answers by name."""

    def __init__(self) -> None:
        self.right: dict[str, int] = {}
        self.total: dict[str, int] = {}

    def count(self, name: str, correct: Tensor) -> None:
        """Add some answers, each right or wrong."""
        self.right[name] = self.right.get(name, 0) + int(correct.sum())
        self.total[name] = self.total.get(name, 0) + correct.numel()

    def percentages(self) -> dict[str, float]:
        """Return the share of right answers by name, in percent."""
        return {name: round(100 * self.right[name] / max(self.total[name], 1), 1) for name in sorted(self.total)}


def tally_patches(tally: Tally, heads: PatchHeads, normed: Tensor, batch: Patches) -> None:
    """Count what the heads recognise.

    Patches of things (`patches`) and of the background (`nothing`); by the vote of their patches, things in styles that
    training shows (`things`) and never shows (`held_out`); signs whose word is read (`words`); and things whose patches
    say where the centre is (`found`).
    """
    label, word, _, place = heads(normed[:, 1:])
    where = place[..., -3:-1] / 2 + 0.5
    centres = places.outlines_of(batch.positions, batch.offsets, batch.sizes)[..., :2]
    named, shown = label.argmax(-1) == batch.labels, batch.labels != NOTHING
    tally.count("patches", named[shown])
    tally.count("nothing", named[~shown])
    for row, owners in enumerate(batch.owners):
        for thing in owners.unique():
            own = owners == thing
            if thing < 0 or own.sum() < FEWEST_PATCHES:
                continue
            tally.count("found", ((where[row, own].mean(0) - centres[row, own][0]).abs() <= NEAR).all())
            written = batch.words[row, own][0]
            if written != NO_WORD:
                tally.count("words", word[row, own].log_softmax(-1).sum(0).argmax() == written)
            else:
                vote = label[row, own].log_softmax(-1).sum(0).argmax()
                name = "held_out" if batch.held_out[row, own][0] else "things"
                tally.count(name, vote == batch.labels[row, own][0])
