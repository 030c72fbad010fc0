"""SigLIP's text encoder, for models that see through SigLIP's vision tower (LLaVA-OneVision, LLaVA-Video)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eadp.models.guides.towers import TowerGuide


class SiglipGuide(TowerGuide):
    """v = post_layernorm(hidden state), t = last hidden state of the text encoder, pooled = its pooler output.

    LLaVA-OneVision takes `hidden_states[-1]` of a tower that lost its last block and its head: the last block's output
    before `post_layernorm`. SigLIP's own output is after it, so `align` applies it. SigLIP has no projection: the two
    sides meet in the width of their hidden states, which must be equal.

    As SigLIP was trained: no BOS, always padded to full length (64) and never masked; it pools at the last slot.

    sign is −1: SigLIP's sigmoid loss, too, compares one pooled vector a side, which is the cause that the paper gives
    for negating, and it makes no exception for the SigLIP of LLaVA-Video. It was never measured by itself there.
    """

    def __init__(
        self, *, text_model: nn.Module, post_layernorm: nn.Module, tokenizer: Any, sign: float = -1.0
    ) -> None:
        super().__init__(text_model=text_model, post_layernorm=post_layernorm, tokenizer=tokenizer, sign=sign)
        width, expected = post_layernorm.weight.shape[0], text_model.config.hidden_size
        if width != expected:
            raise ValueError(
                f"the vision tower has {width} channels, but SigLIP's text encoder has {expected}: pass checkpoint= "
                "(or modules) of the SigLIP that the tower was taken from"
            )

    def _states(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        output = self.text_model(input_ids=ids)
        return output.last_hidden_state, output.pooler_output

    @torch.no_grad()
    def align(self, states: Tensor) -> Tensor:
        """[..., d] → [..., d]."""
        return self.post_layernorm(states.to(self.post_layernorm.weight.dtype))
