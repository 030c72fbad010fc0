"""The language model's own input embeddings, for models whose vision tower has no text encoder."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from eadp.core import TextGuide, TextLayout
from eadp.models.guides.base import Guide, Space, tokenizer_of
from eadp.models.guides.pieces import pieces_of


class EmbeddingGuide(Guide):
    """v = the projected features, t = the input embeddings of the question's tokens, pooled = their mean.

    An empty question has no pooled vector, because there is nothing to average.

    The sign is −1, as in the paper and its release, on Qwen too; their results were measured that way. The paper's
    reason for negating is a tower trained through one pooled vector, which does not hold in this space. The sign alone
    was never measured here: `eadp.diagnose_sign` shows which one suits a model, and `sign=+1` sets the other.
    """

    space: ClassVar[Space] = "language"

    def __init__(self, embeddings: nn.Embedding, processor: Any, *, sign: float = -1.0) -> None:
        super().__init__(sign)
        if processor is None:
            raise ValueError(
                "the guide from the language model's embeddings needs the processor (or its tokenizer) to split "
                "a question into tokens: pass processor="
            )
        self.embeddings = embeddings
        self.tokenizer = tokenizer_of(processor)

    def _encode(self, question: str, layout: TextLayout) -> TextGuide:
        pieces = pieces_of(question, self.tokenizer)
        weight = self._follow_model()
        device = "cpu" if weight.device.type == "meta" else weight.device
        tokens = self.embeddings(torch.tensor(pieces.ids, dtype=torch.long, device=device))
        pooled = tokens.float().mean(0).to(tokens.dtype) if pieces.ids else None
        return TextGuide(tokens, pooled, tuple(pieces.words), self.sign)

    def align(self, states: Tensor) -> Tensor:
        """Return the features unchanged."""
        return states

    def _follow_model(self) -> Tensor:
        return self.embeddings.weight
