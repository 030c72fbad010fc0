"""Several questions about a scene in one sequence: none sees another, and each has the positions that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from eadp.pocket.things.mentions import find_mentions
from eadp.pocket.things.questions import Question
from eadp.pocket.things.render import GRID
from eadp.pocket.things.view import View
from training.things.mentions import UNKNOWN, locate, locate_answer

IGNORED = -100


@dataclass(frozen=True)
class ChatFormat:
    """The text around an image, a question and its answer. The prompt ends with `prompt_end`."""

    before_image: str
    after_image: str
    prompt_end: str
    before_answer: str
    end: str


CHAT_ML = ChatFormat("<|im_start|>user\n", "\n", "<|im_end|>\n<|im_start|>assistant\n", "", "<|im_end|>")
"""The format of SmolLM2, without a system message."""

VICUNA = ChatFormat("<s>USER: ", "\n", " ASSISTANT:", " ", "</s>")
"""The format of the pocket model, LLaVA-1.5's."""


@dataclass(frozen=True)
class Text:
    """Packed questions and answers about B scenes, padded to L tokens.

    Attributes:
        ids: B×L, token ids.
        block: B×L, the number of the question, from 1; 0 for padding.
        offset: B×L, the position within the question.
        labels: B×L, the next token where it is part of an answer; `IGNORED` elsewhere.
        mentions: M×2, the row and the column in `ids` of the last token of every name of a thing in the questions.
        located: M×3, how many things of that name the scene shows, and the column and row of the only one.
        answers: Q×2, the row and the column in `ids` of the last token before every answer.
        answered: Q×2, the column and row of the thing that the answer names; unknown where it names none.
    """

    ids: Tensor
    block: Tensor
    offset: Tensor
    labels: Tensor
    mentions: Tensor
    located: Tensor
    answers: Tensor
    answered: Tensor


class Packer:
    """Packs questions for a language model with a chat format.

    Args:
        tokenizer: The tokenizer of the language model.
        chat: The chat format.
    """

    def __init__(self, tokenizer: Any, chat: ChatFormat) -> None:
        self.tokenizer, self.chat = tokenizer, chat
        self.before, self.after = (torch.tensor(self._encode(text)) for text in (chat.before_image, chat.after_image))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def pack(self, questions: list[list[Question]], views: Sequence[View | None]) -> Text:
        """Pack the questions of every scene, in their order. Of what has no view, mentions are not located."""
        rows, mentions, located, answers, answered = [], [], [], [], []
        for row, (asked, view) in enumerate(zip(questions, views, strict=True)):
            tokens: list[tuple[int, int, int, int]] = []
            for number, question in enumerate(asked, 1):
                prompt = self.tokenizer(question.text + self.chat.prompt_end, add_special_tokens=False)
                if view is not None:
                    for _, end, name in find_mentions(question.text):
                        mentions.append((row, len(tokens) + prompt.char_to_token(end - 1)))
                        located.append(locate(view, name))
                answer = self._encode(self.chat.before_answer + question.answer + self.chat.end)
                answers.append((row, len(tokens) + len(prompt["input_ids"]) - 1))
                answered.append((UNKNOWN, UNKNOWN) if view is None else locate_answer(view, question))
                ids = [*prompt["input_ids"], *answer]
                labels = [IGNORED] * (len(ids) - len(answer) - 1) + [*answer, IGNORED]
                tokens.extend(zip(ids, [number] * len(ids), range(len(ids)), labels, strict=True))
            rows.append(tokens)
        longest = max(map(len, rows))
        padded = torch.tensor([row + [(0, 0, 0, IGNORED)] * (longest - len(row)) for row in rows])
        named, where, before, found = (
            torch.tensor(values, dtype=torch.long) for values in (mentions, located, answers, answered)
        )
        return Text(
            ids=padded[..., 0],
            block=padded[..., 1],
            offset=padded[..., 2],
            labels=padded[..., 3],
            mentions=named.view(-1, 2),
            located=where.view(-1, 3),
            answers=before,
            answered=found,
        )

    def hidden_states(
        self,
        model: LlamaForCausalLM,
        visual: Tensor,
        keep: Tensor,
        text: Text,
        layers: Sequence[int] = (),
        total: int = GRID * GRID,
    ) -> tuple[Tensor, ...]:
        """Compute the hidden states of the text, B×L×d: the last ones, and those after some layers.

        Args:
            model: The language model.
            visual: B×n×d, the kept visual tokens.
            keep: B×n, their indices in the image or clip.
            text: The packed questions.
            layers: The numbers of layers after which the other results are taken.
            total: The number of visual tokens of an image or clip, of which these were kept.
        """
        batch, kept = keep.shape
        embed = model.get_input_embeddings()
        before, after = (embed(ids).expand(batch, -1, -1) for ids in (self.before, self.after))
        hidden = torch.cat((before, visual.to(before.dtype), after, embed(text.ids)), 1)
        lead, tail = len(self.before), len(self.after)
        start = lead + total
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
        output = model.model(
            inputs_embeds=hidden,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            output_hidden_states=True,
        )
        length = text.ids.shape[1]
        states = (output.last_hidden_state, *(output.hidden_states[layer] for layer in layers))
        return tuple(state[:, -length:] for state in states)


def answer_logits(model: LlamaForCausalLM, states: Tensor, text: Text) -> Tensor:
    """Compute the logits of all answer tokens, n×vocabulary, in the order of `labels`."""
    return model.lm_head(states[text.labels != IGNORED]).float()


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
