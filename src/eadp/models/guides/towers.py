"""Guides that borrow the text encoder which the vision tower was trained with: what CLIP and SigLIP share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from eadp.core import TextGuide, TextLayout
from eadp.models.guides.base import Guide, Space
from eadp.models.guides.pieces import pieces_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EMPTY_SLOT = "·"
"""How a slot reads that only fills the encoder's sequence up."""


class TowerGuide(Guide):
    """A text encoder of fixed length L beside the model's own vision tower, of which it holds the `post_layernorm`.

    How a question longer than L is cut, and whether slots without a word count, is the method's choice (`TextLayout`).
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
    def _closing(self) -> list[int]:
        """Ids behind them."""
        return [self.tokenizer.eos_token_id]

    @property
    def _beside(self) -> list[nn.Module]:
        """The modules that are not the model's own, so that they have to be moved with it."""
        return [self.text_model]

    @abstractmethod
    def _states(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """S×L ids and where they are not padding → S×L×c tokens and S×c pooled."""

    @property
    def _padding(self) -> int:
        """The id that fills a segment of words up to the encoder's length."""
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id if pad is None else pad

    @property
    def _filling(self) -> int:
        """The id that fills slots up in the releases."""
        return self._padding

    def _encode(self, question: str, layout: TextLayout) -> TextGuide:
        length, opening, end = self.text_model.config.max_position_embeddings, self._opening, self._closing
        pieces = pieces_of(question, self.tokenizer)
        room = length - len(opening) - len(end)
        if layout == "slots":
            return self._slots([*opening, *pieces.ids, *end], [*opening, *pieces.words, *end])
        spans = [slice(0, room)] if layout == "truncated" else pieces.segments(room)
        rows = [[*opening, *pieces.ids[span], *end] for span in spans]
        states, pooled = self._states(*self._filled(rows, self._padding))
        first = len(opening)
        tokens = [state[first : first + len(pieces.ids[span])] for state, span in zip(states, spans, strict=True)]
        words = tuple(word for span in spans for word in pieces.words[span])
        if len(spans) == 1:
            return TextGuide(tokens[0], pooled[0], words, self.sign)
        return TextGuide(tokens, list(pooled), words, self.sign)

    def _slots(self, ids: list[int], words: list[str | int]) -> TextGuide:
        """Every slot as a word. words: how the ids read, ids for those that are no words."""
        rows = self._slot_rows(ids)
        states, pooled = self._states(*self._filled(rows, self._filling))
        names = [self.tokenizer.decode([word]) if isinstance(word, int) else word for word in words]
        slots = len(states) * states.shape[1]
        names = [*names, *[EMPTY_SLOT] * (slots - len(names))][:slots]
        return TextGuide(list(states), list(pooled), tuple(names), self.sign)

    def _slot_rows(self, ids: list[int]) -> list[list[int]]:
        """The whole question as rows of at most L ids."""
        length = self.text_model.config.max_position_embeddings
        return [ids[start : start + length] for start in range(0, len(ids), length)]

    def _filled(self, rows: list[list[int]], filling: int) -> tuple[Tensor, Tensor]:
        """S×L ids, and which of them are no filling."""
        length, device = self.text_model.config.max_position_embeddings, self._settle().device
        ids = torch.tensor([row + [filling] * (length - len(row)) for row in rows], device=device)
        real = torch.arange(length, device=device) < torch.tensor([[len(row)] for row in rows], device=device)
        return ids, real

    def _settle(self) -> Tensor:
        theirs, ours = self.post_layernorm.weight, next(self.text_model.parameters())
        # A tower that is offloaded shows weights on "meta": then there is nowhere to follow it to.
        if theirs.device.type != "meta" and (theirs.device, theirs.dtype) != (ours.device, ours.dtype):
            for module in self._beside:
                module.to(theirs.device, theirs.dtype)
        return next(self.text_model.parameters())
