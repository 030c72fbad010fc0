"""Stages 2 to 4: the language model learns to answer from scenes written as words, then from what the tower sees."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from eadp.pocket.model import GRID, WIDTH
from eadp.pocket.text import EOS, IMAGE, SPECIAL, prompt
from eadp.pocket.world import COLOURS, SHAPES, WRITINGS
from eadp.pocket.world.scene import MOST_THINGS
from eadp.pocket.world.wording import noun
from training.data import Corpus

BATCH = 16
ROOM = 160
"""Text tokens that a scene's questions and answers may fill."""


class SceneInWords(nn.Module):
    """Visual tokens made of the language model's own words: what an ideal projector would say about every patch.

    A patch that shows a thing says its colour, shape and writing, where its centre is and how many of its shape there
    are; any other patch says that there is nothing, and where.
    """

    def __init__(self, embedding: nn.Embedding, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.words = [embedding]  # in a list: the language model owns it
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
        """owners B×N, things B×8×fields → B×N×d."""
        shown = (owners >= 0)[..., None]
        labels = things.gather(1, owners.clamp(min=0)[..., None].expand(-1, -1, things.shape[-1]))
        colour, shape, writing, x, y, alike = labels.unbind(-1)
        words = self.words[0]
        said = words(self.colours[colour.clamp(min=0)]) + words(self.shapes[shape.clamp(min=0)])
        said = said + words(self.writings[writing.clamp(min=0)]) * (writing >= 0)[..., None]
        said = said + 0.5 * words(self.numbers[alike.clamp(min=0)])
        cell = torch.arange(GRID * GRID)
        rows = torch.where(shown[..., 0], y, cell // GRID)
        columns = torch.where(shown[..., 0], x, cell % GRID)
        return torch.where(shown, said, self.nothing) + self.row(rows) + self.column(columns)


class Pointing(nn.Module):
    """Asked of every noun half-way up the language model: how many things does it name and, if one, which? And a layer
    higher, of a noun that follows another: on which side of it is the other's thing?

    Without it the model stays at guessing for long: finding the thing and passing it on to the answer are two steps,
    and neither pays before the other.
    """

    LAYERS = (2, 3)

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (MOST_THINGS + 1, len(COLOURS), len(SHAPES), len(WRITINGS), GRID, GRID)
        self.linear = nn.Linear(WIDTH, sum(self.sizes))
        self.pair = nn.Linear(WIDTH, 2)

    def loss(self, states: tuple[Tensor, Tensor], aims: Tensor, things: Tensor, previous: Tensor) -> Tensor:
        """states: B×L×d after each of LAYERS; things: B×8×fields; aims: B×L, bits of the things that a noun names, −1
        for other tokens; previous: B×L, where the noun before this one is in the same question, −1 for none."""
        hidden, higher = states
        nouns = aims >= 0
        number = torch.arange(MOST_THINGS)
        named = (aims.clamp(min=0)[..., None] >> number) & 1
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
        """Is the thing before further left, and is it higher? Where each noun names one thing and they differ."""
        unique = named.sum(-1) == 1
        places = things[..., 3:5].gather(1, named.argmax(-1)[..., None].expand(-1, -1, 2))
        other = previous.clamp(min=0)
        gap = places - places.gather(1, other[..., None].expand(-1, -1, 2))
        known = (gap != 0) & ((previous >= 0) & unique & unique.gather(1, other))[..., None]
        if not known.any():
            return hidden.new_zeros(())
        return F.binary_cross_entropy_with_logits(self.pair(hidden)[known], (gap > 0)[known].float())


class Packer:
    """Several questions about one scene in one sequence, each blind to the others and placed as if it were alone."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        ids = tokenizer(prompt(""))["input_ids"]
        image = ids.index(SPECIAL.index(IMAGE))
        self.before = torch.tensor(ids[:image])
        self.newline = ids[image + 1]
        self.turn = tokenizer(" ASSISTANT:", add_special_tokens=False)["input_ids"]
        self.end = [SPECIAL.index(EOS)]
        nouns = (noun(shape, plural) for shape in (None, *SHAPES) for plural in (False, True))
        self.nouns = tokenizer.convert_tokens_to_ids([f"Ġ{word}" for word in nouns])

    def text(self, corpus: Corpus, rows: np.ndarray, rng: np.random.Generator) -> tuple[Tensor, ...]:
        """B×ROOM each: ids, question number (0: padding), place within the question, next token to learn (−100: none),
        bits of the things that a noun names (−1: no noun), where the noun before is in the same question (−1: none)."""
        ids, block, place, aims = (np.zeros((len(rows), ROOM), np.int64) for _ in range(4))
        previous = np.full((len(rows), ROOM), -1)
        labels = np.full((len(rows), ROOM), -100)
        for line, row in enumerate(rows):
            start = 0
            for number, asked in enumerate(rng.permutation(corpus.questions.shape[1]), 1):
                question, answer = corpus.questions[row, asked], corpus.answers[row, asked]
                answered = [*answer[answer > 0], *self.end]
                tokens = [*question[question > 0], *self.turn, *answered]
                stop = start + len(tokens)
                if len(answered) == 1 or stop > ROOM:
                    continue
                ids[line, start:stop], block[line, start:stop] = tokens, number
                place[line, start:stop] = range(len(tokens))
                words = int((question > 0).sum())
                aims[line, start : start + words] = corpus.pointers[row, asked, :words]
                labels[line, stop - len(answered) - 1 : stop - 1] = answered
                start = stop
        aims[~np.isin(ids, self.nouns) | (block == 0)] = -1
        for line in range(len(rows)):
            nouns = np.flatnonzero(aims[line] >= 0)
            same = block[line, nouns[1:]] == block[line, nouns[:-1]]
            previous[line, nouns[1:][same]] = nouns[:-1][same]
        return tuple(torch.from_numpy(array) for array in (ids, block, place, labels, aims, previous))

    def loss(
        self, model: LlavaForConditionalGeneration, visual: Tensor, keep: Tensor, text: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Loss, share of answers' words that are right, and the text's hidden states after Pointing.LAYERS.

        visual B×n×d are the kept tokens, keep B×n where they came from.
        """
        ids, block, place, labels, *_ = text
        batch, kept = keep.shape
        embed = model.get_input_embeddings()
        newline = embed(torch.full((batch, 1), self.newline))
        hidden = torch.cat((embed(self.before).expand(batch, -1, -1), visual, newline, embed(ids)), 1)
        lead, cells = len(self.before), GRID * GRID
        order = torch.arange(lead).expand(batch, -1)
        after = torch.full((batch, 1), lead + cells)
        positions = torch.cat((order, keep + lead, after, after + 1 + place), 1)
        shared = torch.zeros(batch, lead + kept + 1, dtype=torch.long)
        blocks = torch.cat((shared, torch.where(block > 0, block, -1)), 1)
        seen = (blocks[:, :, None] == blocks[:, None]) | (blocks[:, None] == 0)
        mask = (seen & torch.ones(seen.shape[1:], dtype=torch.bool).tril())[:, None]
        output = model.model.language_model(
            inputs_embeds=hidden, attention_mask=mask, position_ids=positions, output_hidden_states=True
        )
        learn = labels != -100
        logits = model.lm_head(output.last_hidden_state[:, -ROOM:][learn])
        word = labels[learn] != self.end[0]
        right = (logits.argmax(-1) == labels[learn])[word].float().mean()
        low, high = (output.hidden_states[layer][:, -ROOM:] for layer in Pointing.LAYERS)
        return F.cross_entropy(logits, labels[learn]), right, (low, high)


def choose(owners: Tensor, count: int, guided: bool) -> Tensor:
    """B×count patches in order. Guided: every thing keeps one at least, and things are preferred to background."""
    luck = torch.rand(owners.shape)
    if guided:
        shown = owners >= 0
        one_hot = F.one_hot(owners.clamp(min=0), MOST_THINGS) * shown[..., None]
        first = (luck[..., None] * one_hot).argmax(1)
        luck = luck + 0.4 * shown
        luck = luck.scatter_add(1, first, one_hot.amax(1) * 2.0)
    return luck.topk(count, 1).indices.sort(1).values


def take(tokens: Tensor, keep: Tensor) -> Tensor:
    return tokens.gather(1, keep[..., None].expand(-1, -1, tokens.shape[-1]))
