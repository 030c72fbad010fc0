"""Guides that borrow the text encoder which the vision tower was trained with: what CLIP and SigLIP share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from eadp.core import TextGuide
from eadp.models.guides.base import Guide, Space
from eadp.models.guides.pieces import pieces_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TowerGuide(Guide):
    """A text encoder of fixed length L beside the model's own vision tower, of which it holds the `post_layernorm`.

    A question longer than L is cut into segments that are encoded each by itself, all in one batch.
    """

    space: ClassVar[Space] = "tower"

    def __init__(
        self, *, text_model: PreTrainedModel, post_layernorm: nn.LayerNorm, tokenizer: Any, sign: float
    ) -> None:
        super().__init__(sign)
        self.text_model = text_model
        self.post_layernorm = post_layernorm
        self.tokenizer = tokenizer
        if tokenizer.vocab_size <= len(tokenizer.all_special_tokens):
            raise ValueError("the tokenizer of the text encoder is empty: its files were not beside the checkpoint")

    @property
    def _opening(self) -> list[int]:
        """Ids before the words of each segment."""
        return []

    @property
    def _beside(self) -> list[nn.Module]:
        """The modules that are not the model's own, so that they have to be moved with it."""
        return [self.text_model]

    @abstractmethod
    def _states(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """S×L ids and where they are not padding → S×L×c tokens and S×c pooled."""

    def _encode(self, question: str) -> TextGuide:
        length, opening = self.text_model.config.max_position_embeddings, self._opening
        end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        pieces = pieces_of(question, self.tokenizer)
        runs = [pieces.ids[span] for span in pieces.segments(length - len(opening) - 1)]
        rows = [[*opening, *run, end] for run in runs]
        padded = [row + [end if pad is None else pad] * (length - len(row)) for row in rows]
        device = self._settle().device
        ids = torch.tensor(padded, device=device)
        real = torch.arange(length, device=device) < torch.tensor([[len(row)] for row in rows], device=device)
        states, pooled = self._states(ids, real)

        first = len(opening)
        tokens = [state[first : first + len(run)] for state, run in zip(states, runs, strict=True)]
        rest = [torch.cat([s[:first], s[first + len(run) :]]) for s, run in zip(states, runs, strict=True)]
        if len(runs) == 1:
            return TextGuide(tokens[0], pooled[0], tuple(pieces.words), self.sign, rest[0])
        return TextGuide(tokens, list(pooled), tuple(pieces.words), self.sign, rest)

    def _settle(self) -> Tensor:
        theirs, ours = self.post_layernorm.weight, next(self.text_model.parameters())
        # A tower that is offloaded shows weights on "meta": then there is nowhere to follow it to.
        if theirs.device.type != "meta" and (theirs.device, theirs.dtype) != (ours.device, ours.dtype):
            for module in self._beside:
                module.to(theirs.device, theirs.dtype)
        return next(self.text_model.parameters())
