"""Stage 1: CLIP's text encoder learns from whole captions. Nobody tells it which words point at something.

Two contrasts within a batch: the caption's EOS token against the image's CLS token; and late interaction, where every
word of the caption takes the cosine of its best patch, and the mean over all words is the similarity of the two.
"""

from __future__ import annotations

from math import log

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from eadp.pocket.model import ClipText
from eadp.pocket.things.render import GRID, PATCH
from training.things.text import END, PADDING, START, encode_captions, write_captions
from training.things.tower import Tally
from training.things.windows import Patches

LARGEST_SCALE = 100.0
"""Largest factor of the cosines before the softmax, as in CLIP."""


class Temperatures(nn.Module):
    """The factors of the cosines of the two contrasts, as logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.pooled = nn.Parameter(torch.tensor(log(10.0)))
        self.late = nn.Parameter(torch.tensor(log(20.0)))


def caption_losses(clip: ClipText, temperatures: Temperatures, normed: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """Compute the two contrasts.

    Args:
        clip: The text encoder.
        temperatures: The factors of the cosines.
        normed: B×(1+n)×d, encoded images, CLS first.
        ids: B×L, encoded captions; a row without words takes no part.
    """
    written = is_word(ids).any(1)
    normed, ids = normed[written], ids[written]
    tokens = F.normalize(clip.encode_tokens(ids), dim=-1)
    visual = F.normalize(clip.visual_projection(normed), dim=-1)
    ends = tokens[torch.arange(len(ids)), (ids == END).int().argmax(1)]
    pooled = ends @ visual[:, 0].mT
    late = late_interaction(tokens, is_word(ids), visual[:, 1:])
    return {
        "pooled": _contrast(pooled, temperatures.pooled),
        "late": _contrast(late, temperatures.late),
    }


def late_interaction(tokens: Tensor, words: Tensor, patches: Tensor) -> Tensor:
    """Compute the similarity of every caption with every image: the mean over its words of the best patch's cosine.

    Args:
        tokens: A×L×c, unit vectors.
        words: A×L, which tokens are words.
        patches: B×n×c, unit vectors.

    Returns:
        A×B.
    """
    best = torch.einsum("alc,bnc->albn", tokens, patches).amax(-1)
    return (best * words[..., None]).sum(1) / words.sum(1, keepdim=True)


def is_word(ids: Tensor) -> Tensor:
    """Mark the tokens that are not BOS, EOS or padding."""
    return (ids != START) & (ids != END) & (ids != PADDING)


def tally_captions(
    tally: Tally, clip: ClipText, tokenizer: PreTrainedTokenizerFast, normed: Tensor, batch: Patches, seed: int
) -> None:
    """Count what the text encoder finds.

    Captions whose own image is the most similar one of the batch, by the pooled contrast (`pooled`) and by late
    interaction (`late`); and names of visible things, read alone, whose best patch is on the thing (`pointing`).
    """
    visual = F.normalize(clip.visual_projection(normed), dim=-1)
    ids = encode_captions(tokenizer, write_captions(batch.views, np.random.default_rng((6, seed))))
    tokens, words = F.normalize(clip.encode_tokens(ids), dim=-1), is_word(ids)
    own = torch.arange(len(ids))
    pooled = tokens[own, (ids == END).int().argmax(1)] @ visual[:, 0].mT
    written = words.any(1)
    tally.count("pooled", (pooled.argmax(1) == own)[written])
    tally.count("late", (late_interaction(tokens, words, visual[:, 1:]).argmax(1) == own)[written])
    named = [(row, view, index) for row, view in enumerate(batch.views) for index in view.unique]
    ids = encode_captions(tokenizer, [view.names[index] for _, view, index in named])
    names = (F.normalize(clip.encode_tokens(ids), dim=-1) * is_word(ids)[..., None]).sum(1)
    rows = torch.tensor([row for row, _, _ in named])
    best = torch.einsum("kc,knc->kn", names, visual[rows, 1:]).argmax(1)
    # The view of a window counts pixels from the window's corner.
    place = batch.positions[rows, best] - batch.positions[rows, 0]
    middles = PATCH * (torch.stack((place % GRID, place // GRID), 1) + 0.5)
    things = [view.things[index] for _, view, index in named]
    corners = torch.tensor([(thing.x, thing.y) for thing in things])
    sizes = torch.tensor([(thing.width, thing.height) for thing in things])
    tally.count("pointing", ((middles >= corners) & (middles < corners + sizes)).all(1))


def _contrast(similarity: Tensor, temperature: Tensor) -> Tensor:
    """Compute the symmetric contrast of a square matrix whose diagonal holds the true pairs."""
    logits = similarity * temperature.exp().clamp(max=LARGEST_SCALE)
    own = torch.arange(len(logits))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.mT, own)) / 2
