"""Several questions about a scene in one sequence: none sees another, and each has the positions that it has alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from eadp.pocket.things.questions import Question
from eadp.pocket.things.render import GRID

BEFORE_IMAGE = "<|im_start|>user\n"
AFTER_IMAGE = "\n"
BEFORE_ANSWER = "<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"
"""The chat format of SmolLM2, without a system message."""

IGNORED = -100


@dataclass(frozen=True)
class Text:
    """Packed questions and answers about B scenes, padded to L tokens.

    Attributes:
        ids: B×L, token ids.
        block: B×L, the number of the question, from 1; 0 for padding.
        offset: B×L, the position within the question.
        labels: B×L, the next token where it is part of an answer; `IGNORED` elsewhere.
    """

    ids: Tensor
    block: Tensor
    offset: Tensor
    labels: Tensor


class Packer:
    """Packs questions for a language model with a chat format.

    Args:
        tokenizer: The tokenizer of the language model.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.before = torch.tensor(self._encode(BEFORE_IMAGE))
        self.after = torch.tensor(self._encode(AFTER_IMAGE))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def pack(self, questions: list[list[Question]]) -> Text:
        """Pack the questions of every scene, in their order."""
        rows = []
        for asked in questions:
            tokens: list[tuple[int, int, int, int]] = []
            for number, question in enumerate(asked, 1):
                prompt = self._encode(question.text + BEFORE_ANSWER)
                answer = self._encode(question.answer + END)
                ids = [*prompt, *answer]
                labels = [IGNORED] * (len(prompt) - 1) + [*answer, IGNORED]
                tokens.extend(zip(ids, [number] * len(ids), range(len(ids)), labels, strict=True))
            rows.append(tokens)
        longest = max(map(len, rows))
        padded = torch.tensor([row + [(0, 0, 0, IGNORED)] * (longest - len(row)) for row in rows])
        return Text(*padded.unbind(-1))

    def answer_logits(self, model: LlamaForCausalLM, visual: Tensor, keep: Tensor, text: Text) -> Tensor:
        """Compute the logits of all answer tokens, n×vocabulary, in the order of `labels`.

        Args:
            model: The language model.
            visual: B×n×d, the kept visual tokens.
            keep: B×n, their indices in the image.
            text: The packed questions.
        """
        batch, kept = keep.shape
        embed = model.get_input_embeddings()
        before, after = (embed(ids).expand(batch, -1, -1) for ids in (self.before, self.after))
        hidden = torch.cat((before, visual, after, embed(text.ids)), 1)
        lead, tail = len(self.before), len(self.after)
        start = lead + GRID * GRID
        positions = torch.cat(
            (
                torch.arange(lead).expand(batch, -1),
                keep + lead,
                torch.arange(start, start + tail).expand(batch, -1),
                text.offset + start + tail,
            ),
            1,
        )
        shared = torch.zeros(batch, lead + kept + tail, dtype=torch.long)
        blocks = torch.cat((shared, torch.where(text.block > 0, text.block, -1)), 1)
        visible = (blocks[:, :, None] == blocks[:, None]) | (blocks[:, None] == 0)
        mask = (visible & torch.ones(visible.shape[1:], dtype=torch.bool).tril())[:, None]
        output = model.model(inputs_embeds=hidden, attention_mask=mask, position_ids=positions, use_cache=False)
        states = output.last_hidden_state[:, -text.ids.shape[1] :]
        return model.lm_head(states[text.labels != IGNORED])


def answer_losses(logits: Tensor, text: Text) -> dict[str, Tensor]:
    """Compute the loss of the answers, and the share of answer tokens that are right."""
    labels = text.labels[text.labels != IGNORED]
    return {"answer": F.cross_entropy(logits, labels), "right": (logits.argmax(-1) == labels).float().mean()}


def right_answers(logits: Tensor, text: Text) -> list[list[bool]]:
    """Return, per scene and question, whether greedy decoding gives the whole answer."""
    learnt = text.labels != IGNORED
    correct = torch.ones_like(text.labels, dtype=torch.bool)
    correct[learnt] = logits.argmax(-1) == text.labels[learnt]
    return [
        [bool(row[block == number].all()) for number in range(1, int(block.max()) + 1)]
        for row, block in zip(correct, text.block, strict=True)
    ]
