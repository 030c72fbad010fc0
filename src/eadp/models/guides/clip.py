"""CLIP's text tower, for models that see through CLIP's vision tower (LLaVA-1.5, LLaVA-NeXT)."""

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

    The pooled vector is the EOS token's, found by CLIP's own code. Segments of at most 77 slots, each with BOS and EOS.
    `align` takes the tower's hidden state of the layer that LLaVA uses (−2), without CLS: CLIP itself normalises and
    projects only CLS of the last layer, so for patches this is a reading of its space, not its training target.

    sign is −1: CLIP is trained through one pooled vector, and its patches learn to carry what the pooling needs, not
    what they show; raw maps give the background the higher cosine. The paper, CDPruner and TRIM all negate; their
    figures were measured so.
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
    def _filling(self) -> int:
        return 0

    @property
    def _beside(self) -> list[nn.Module]:
        return [self.text_model, self.text_projection, self.visual_projection]

    def _states(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        output = self.text_model(input_ids=ids, attention_mask=real.long())
        return self.text_projection(output.last_hidden_state), self.text_projection(output.pooler_output)

    @torch.no_grad()
    def align(self, states: Tensor) -> Tensor:
        """[..., tower's d] → [..., CLIP's projection dim]."""
        self._settle()
        return self.visual_projection(self.post_layernorm(states.to(self.post_layernorm.weight.dtype)))
