"""Stages 2 to 4: the language model learns to answer from scenes encoded as words, then from visual tokens."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from eadp.pocket.model import GRID, WIDTH
from eadp.pocket.text import EOS, IMAGE, SPECIAL, format_prompt
from eadp.pocket.world import COLOURS, SHAPES, WRITINGS
from eadp.pocket.world.scene import MAX_THINGS
from eadp.pocket.world.wording import noun
from training.data import Corpus

BATCH = 16
TEXT_LENGTH = 160
"""Number of text tokens for all questions and answers about a scene."""


class WordTokens(nn.Module):
    """Visual tokens as sums of word embeddings: what an ideal projector would output for every patch.

    The token of a patch that shows a thing encodes its colour, shape and writing, the position of its centre, and how
    many things of its shape the scene has. The token of any other patch encodes "nothing" and its own position.
    """

    def __init__(self, embedding: nn.Embedding, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.words = [embedding]  # In a list, so that it is not registered: the language model owns it.
        self.row = nn.Embedding(GRID, WIDTH)
        self.column = nn.Embedding(GRID, WIDTH)
        self.nothing = nn.Parameter(torch.zeros(WIDTH))
        for table in (self.row, self.column):
            nn.init.normal_(table.weight, std=0.02)
        self.colours, self.shapes, self.writings, self.numbers = (
            torch.tensor([tokenizer.convert_tokens_to_ids(f"Ġ{word}") for word in words])
            for words in (COLOURS, SHAPES, WRITINGS, "01234")
        )

    def forward(self, owners: Tensor, things: Tensor) -> Tensor:
        """Build the tokens, B×N×d, from owners, B×N, and things, B×MAX_THINGS×fields."""
        shown = (owners >= 0)[..., None]
        labels = things.gather(1, owners.clamp(min=0)[..., None].expand(-1, -1, things.shape[-1]))
        colour, shape, writing, x, y, alike = labels.unbind(-1)
        words = self.words[0]
        described = words(self.colours[colour.clamp(min=0)]) + words(self.shapes[shape.clamp(min=0)])
        described = described + words(self.writings[writing.clamp(min=0)]) * (writing >= 0)[..., None]
        described = described + 0.5 * words(self.numbers[alike.clamp(min=0)])
        cell = torch.arange(GRID * GRID)
        rows = torch.where(shown[..., 0], y, cell // GRID)
        columns = torch.where(shown[..., 0], x, cell % GRID)
        return torch.where(shown, described, self.nothing) + self.row(rows) + self.column(columns)


class PointingHead(nn.Module):
    """An auxiliary loss on the hidden states of nouns, in the middle of the language model.

    After layer 2: how many things does a noun name and, if it is one, which? After layer 3, for a noun that follows
    another noun in the same question: on which side of its thing is the other's thing? Without this loss the model
    guesses for a long time, because finding a thing and passing it on to the answer are two steps, and neither lowers
    the loss without the other.
    """

    LAYERS = (2, 3)

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (MAX_THINGS + 1, len(COLOURS), len(SHAPES), len(WRITINGS), GRID, GRID)
        self.linear = nn.Linear(WIDTH, sum(self.sizes))
        self.pair = nn.Linear(WIDTH, 2)

    def loss(self, states: tuple[Tensor, Tensor], targets: Tensor, things: Tensor, previous: Tensor) -> Tensor:
        """Compute the loss.

        Args:
            states: B×L×d after each of `LAYERS`.
            targets: B×L, the bit mask of the things that a noun names; −1 for other tokens.
            things: B×MAX_THINGS×fields.
            previous: B×L, the index of the noun before this one in the same question; −1 for none.
        """
        hidden, higher = states
        nouns = targets >= 0
        number = torch.arange(MAX_THINGS)
        named = (targets.clamp(min=0)[..., None] >> number) & 1
        count, *kinds = self.linear(hidden[nouns]).split(self.sizes, -1)
        counts = named.sum(-1)[nouns]
        which = named.argmax(-1)
        labels = things.gather(1, which[..., None].expand(-1, -1, things.shape[-1]))[nouns]
        loss = F.cross_entropy(count, counts)
        for logits, label in zip(kinds, labels.unbind(-1), strict=False):
            known = (counts == 1) & (label >= 0)
            loss = loss + 0.5 * F.cross_entropy(logits[known], label[known])
        return loss + self._pair_loss(higher, named, things, previous)

    def _pair_loss(self, hidden: Tensor, named: Tensor, things: Tensor, previous: Tensor) -> Tensor:
        """Compute the loss of predicting on which side the previous thing is, for nouns that name one thing each."""
        unique = named.sum(-1) == 1
        centres = things[..., 3:5].gather(1, named.argmax(-1)[..., None].expand(-1, -1, 2))
        other = previous.clamp(min=0)
        gap = centres - centres.gather(1, other[..., None].expand(-1, -1, 2))
        known = (gap != 0) & ((previous >= 0) & unique & unique.gather(1, other))[..., None]
        if not known.any():
            return hidden.new_zeros(())
        return F.binary_cross_entropy_with_logits(self.pair(hidden)[known], (gap > 0)[known].float())


class Packer:
    """Packs several questions about one scene into one sequence.

    No question attends to another, and each has the positions that it would have alone.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        ids = tokenizer(format_prompt(""))["input_ids"]
        image = ids.index(SPECIAL.index(IMAGE))
        self.before = torch.tensor(ids[:image])
        self.newline = ids[image + 1]
        self.turn = tokenizer(" ASSISTANT:", add_special_tokens=False)["input_ids"]
        self.end = [SPECIAL.index(EOS)]
        nouns = (noun(shape, plural) for shape in (None, *SHAPES) for plural in (False, True))
        self.nouns = tokenizer.convert_tokens_to_ids([f"Ġ{word}" for word in nouns])

    def text(self, corpus: Corpus, rows: np.ndarray, rng: np.random.Generator) -> tuple[Tensor, ...]:
        """Pack questions and answers in random order, as many as fit.

        Returns:
            Six tensors, B×TEXT_LENGTH:
            ids: Token ids.
            block: The number of the question, from 1; 0 for padding.
            offset: The position within the question.
            labels: The next token, where it is learned; −100 elsewhere.
            targets: The bit mask of the things that a noun names; −1 for other tokens.
            previous: The index of the noun before this one in the same question; −1 for none.
        """
        ids, block, offset, targets = (np.zeros((len(rows), TEXT_LENGTH), np.int64) for _ in range(4))
        previous = np.full((len(rows), TEXT_LENGTH), -1)
        labels = np.full((len(rows), TEXT_LENGTH), -100)
        for line, row in enumerate(rows):
            start = 0
            for number, picked in enumerate(rng.permutation(corpus.questions.shape[1]), 1):
                question, answer = corpus.questions[row, picked], corpus.answers[row, picked]
                answered = [*answer[answer > 0], *self.end]
                tokens = [*question[question > 0], *self.turn, *answered]
                stop = start + len(tokens)
                if len(answered) == 1 or stop > TEXT_LENGTH:
                    continue
                ids[line, start:stop], block[line, start:stop] = tokens, number
                offset[line, start:stop] = range(len(tokens))
                words = int((question > 0).sum())
                targets[line, start : start + words] = corpus.pointers[row, picked, :words]
                labels[line, stop - len(answered) - 1 : stop - 1] = answered
                start = stop
        targets[~np.isin(ids, self.nouns) | (block == 0)] = -1
        for line in range(len(rows)):
            nouns = np.flatnonzero(targets[line] >= 0)
            same = block[line, nouns[1:]] == block[line, nouns[:-1]]
            previous[line, nouns[1:][same]] = nouns[:-1][same]
        return tuple(torch.from_numpy(array) for array in (ids, block, offset, labels, targets, previous))

    def loss(
        self, model: LlavaForConditionalGeneration, visual: Tensor, keep: Tensor, text: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Compute the loss of the answers.

        Args:
            model: The model.
            visual: B×n×d, the kept visual tokens.
            keep: B×n, their indices in the image.
            text: The tensors that `text` returned.

        Returns:
            The loss, the share of the answers' tokens that are correct, and the hidden states of the text after each of
            `PointingHead.LAYERS`.
        """
        ids, block, offset, labels, *_ = text
        batch, kept = keep.shape
        embed = model.get_input_embeddings()
        newline = embed(torch.full((batch, 1), self.newline))
        hidden = torch.cat((embed(self.before).expand(batch, -1, -1), visual, newline, embed(ids)), 1)
        lead, cells = len(self.before), GRID * GRID
        order = torch.arange(lead).expand(batch, -1)
        after = torch.full((batch, 1), lead + cells)
        positions = torch.cat((order, keep + lead, after, after + 1 + offset), 1)
        shared = torch.zeros(batch, lead + kept + 1, dtype=torch.long)
        blocks = torch.cat((shared, torch.where(block > 0, block, -1)), 1)
        visible = (blocks[:, :, None] == blocks[:, None]) | (blocks[:, None] == 0)
        mask = (visible & torch.ones(visible.shape[1:], dtype=torch.bool).tril())[:, None]
        output = model.model.language_model(
            inputs_embeds=hidden, attention_mask=mask, position_ids=positions, output_hidden_states=True
        )
        learn = labels != -100
        logits = model.lm_head(output.last_hidden_state[:, -TEXT_LENGTH:][learn])
        word = labels[learn] != self.end[0]
        right = (logits.argmax(-1) == labels[learn])[word].float().mean()
        low, high = (output.hidden_states[layer][:, -TEXT_LENGTH:] for layer in PointingHead.LAYERS)
        return F.cross_entropy(logits, labels[learn]), right, (low, high)


def choose_patches(owners: Tensor, count: int, guided: bool) -> Tensor:
    """Choose patches at random.

    Args:
        owners: B×N, the thing that each patch shows; −1 for none.
        count: Number of patches per image.
        guided: Keep at least one patch per thing, and prefer things to background.

    Returns:
        B×count, indices of patches in ascending order.
    """
    priority = torch.rand(owners.shape)
    if guided:
        shown = owners >= 0
        one_hot = F.one_hot(owners.clamp(min=0)) * shown[..., None]
        first = (priority[..., None] * one_hot).argmax(1)
        priority = priority + 0.4 * shown
        priority = priority.scatter_add(1, first, one_hot.amax(1) * 2.0)
    return priority.topk(count, 1).indices.sort(1).values


def gather_tokens(tokens: Tensor, keep: Tensor) -> Tensor:
    """Gather tokens, B×N×d, at indices, B×n, into B×n×d."""
    return tokens.gather(1, keep[..., None].expand(-1, -1, tokens.shape[-1]))
