"""What CLIP and SigLIP share: guides that use the text encoder with which the vision tower was trained."""

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
"""The word of a slot that only pads the encoder's sequence."""


class TowerGuide(Guide):
    """A text encoder of fixed length L. It shares the `post_layernorm` of the model's own vision tower.

    The method decides how a question longer than L is split, and whether slots without a word count (`TextLayout`).
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
            raise ValueError("the tokenizer of the text encoder is empty: the checkpoint has no tokenizer files")

    @property
    def _opening(self) -> list[int]:
        """The ids before the words of each segment."""
        return []

    @property
    def _closing(self) -> list[int]:
        """The ids after the words of each segment."""
        return [self.tokenizer.eos_token_id]

    @property
    def _own_modules(self) -> list[nn.Module]:
        """The modules that are not part of the model, so they have to be moved with it."""
        return [self.text_model]

    @property
    def _sees_padding(self) -> bool:
        """Whether padding changes how the encoder sees the words before it."""
        return True

    @abstractmethod
    def _states(self, ids: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Encode S×L ids: S×L×c tokens and S×c pooled.

        Args:
            ids: The ids.
            real: Where they are not padding. None where the states of padding are not used.
        """

    @property
    def _padding(self) -> int:
        """The id that pads a segment of words to the encoder's length."""
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id if pad is None else pad

    @property
    def _slot_padding(self) -> int:
        """The id that pads slots in the releases."""
        return self._padding

    def _encode(self, question: str, layout: TextLayout) -> TextGuide:
        length, opening, end = self.text_model.config.max_position_embeddings, self._opening, self._closing
        pieces = pieces_of(question, self.tokenizer)
        room = length - len(opening) - len(end)
        if layout == "slots":
            return self._slots([*opening, *pieces.ids, *end], [*opening, *pieces.words, *end])
        spans = [slice(0, room)] if layout == "truncated" else pieces.segments(room)
        rows = [[*opening, *pieces.ids[span], *end] for span in spans]
        longest = length if self._sees_padding else max(map(len, rows))
        states, pooled = self._states(self._pad(rows, self._padding, longest), None)
        first = len(opening)
        tokens = [state[first : first + len(pieces.ids[span])] for state, span in zip(states, spans, strict=True)]
        words = tuple(word for span in spans for word in pieces.words[span])
        if len(spans) == 1:
            return TextGuide(tokens[0], pooled[0], words, self.sign)
        return TextGuide(tokens, list(pooled), words, self.sign)

    def _slots(self, ids: list[int], words: list[str | int]) -> TextGuide:
        """Treat every slot as a word. words: the word of each id, or the id itself where it is not a word."""
        rows = self._slot_rows(ids)
        length = self.text_model.config.max_position_embeddings
        padded = self._pad(rows, self._slot_padding, length)
        sizes = torch.tensor([[len(row)] for row in rows], device=padded.device)
        states, pooled = self._states(padded, torch.arange(length, device=padded.device) < sizes)
        names = [self.tokenizer.decode([word]) if isinstance(word, int) else word for word in words]
        slots = len(states) * states.shape[1]
        names = [*names, *[EMPTY_SLOT] * (slots - len(names))][:slots]
        return TextGuide(list(states), list(pooled), tuple(names), self.sign)

    def _slot_rows(self, ids: list[int]) -> list[list[int]]:
        """Split the whole question into rows of at most L ids."""
        length = self.text_model.config.max_position_embeddings
        return [ids[start : start + length] for start in range(0, len(ids), length)]

    def _pad(self, rows: list[list[int]], padding: int, length: int) -> Tensor:
        """Return the rows of ids, padded to a length."""
        device = self._follow_model().device
        return torch.tensor([row + [padding] * (length - len(row)) for row in rows], device=device)

    def _to_norm(self, states: Tensor) -> Tensor:
        """Move hidden states of the tower, which may be those of a replica on another device, to its last norm."""
        weight = self.post_layernorm.weight
        return states.to(weight.dtype) if weight.device.type == "meta" else states.to(weight.device, weight.dtype)

    def _follow_model(self) -> Tensor:
        theirs, ours = self.post_layernorm.weight, next(self.text_model.parameters())
        # The weights of an offloaded tower are on "meta", where there is nothing to follow.
        if theirs.device.type != "meta" and (theirs.device, theirs.dtype) != (ours.device, ours.dtype):
            for module in self._own_modules:
                module.to(theirs.device, theirs.dtype)
        return next(self.text_model.parameters())
