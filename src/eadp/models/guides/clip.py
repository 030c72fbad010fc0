"""CLIP's text encoder, for models with CLIP's vision tower (LLaVA-1.5, LLaVA-NeXT)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from eadp.models.guides.towers import TowerGuide

if TYPE_CHECKING:
    from transformers import CLIPTextModel

LEGACY_EOS = 2


class CLIPGuide(TowerGuide):
    """CLIP's shared space: v = visual_projection(post_layernorm(hidden state)), t = text_projection(last hidden state).

    The pooled vector is that of the EOS token, found by CLIP's own code. A segment has at most 77 slots, with BOS and
    EOS. Where padding does not count as words, only the question's own slots are encoded: CLIP's text encoder is
    causal, so nothing after them changes them.

    `align` takes the tower's hidden states of the layer that LLaVA reads (−2), without CLS. CLIP itself normalises and
    projects only the CLS token of the last layer, so its training does not align patches with text directly.

    The sign is −1: CLIP is trained through one pooled vector, and its patches learn to carry what the pooling needs,
    not what they show, so the background has the higher cosine. The paper, CDPruner and TRIM all negate the cosine,
    and their results were measured that way.
    """

    def __init__(
        self,
        *,
        text_model: CLIPTextModel,
        text_projection: nn.Linear,
        visual_projection: nn.Linear,
        post_layernorm: nn.LayerNorm,
        tokenizer: Any,
        sign: float = -1.0,
    ) -> None:
        super().__init__(text_model=text_model, post_layernorm=post_layernorm, tokenizer=tokenizer, sign=sign)
        self.text_projection = text_projection
        self.visual_projection = visual_projection
        if text_model.eos_token_id not in (LEGACY_EOS, tokenizer.eos_token_id):
            raise ValueError(
                f"the text encoder pools at token {text_model.eos_token_id}, but the tokenizer ends a text with "
                f"{tokenizer.eos_token_id}: give the tokenizer that the text encoder was trained with"
            )
        width, expected = post_layernorm.weight.shape[0], visual_projection.in_features
        if width != expected:
            raise ValueError(
                f"the vision tower has {width} channels, but CLIP's visual_projection takes {expected}: "
                "give the CLIP that the tower was taken from"
            )

    @property
    def _opening(self) -> list[int]:
        return [self.tokenizer.bos_token_id]

    @property
    def _slot_padding(self) -> int:
        return 0

    @property
    def _own_modules(self) -> list[nn.Module]:
        return [self.text_model, self.text_projection, self.visual_projection]

    @property
    def _sees_padding(self) -> bool:
        # Attention is causal, and padding comes last.
        return False

    def _states(self, ids: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        output = self.text_model(input_ids=ids, attention_mask=None if real is None else real.long())
        return self.text_projection(output.last_hidden_state), self.text_projection(output.pooler_output)

    @torch.no_grad()
    def align(self, states: Tensor) -> Tensor:
        """Project hidden states of the tower into CLIP's space: […, d] → […, projection dim]."""
        self._follow_model()
        return self.visual_projection(self.post_layernorm(self._to_norm(states)))
