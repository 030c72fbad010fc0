"""SigLIP's text encoder, for models that see through SigLIP's vision tower (LLaVA-OneVision, LLaVA-Video)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from eadp.models.guides.towers import TowerGuide

if TYPE_CHECKING:
    from transformers import SiglipTextModel


class SiglipGuide(TowerGuide):
    """v = the rows that the model projects, t = last hidden state of the text encoder, pooled = its pooler output.

    `align` takes the states that LLaVA-OneVision reads: of a tower that lost SigLIP's last block and its head, before
    its `post_layernorm`. So does the release of EADP. `normalised=True` sends them through that norm first, which
    SigLIP's own head would see.
    SigLIP has no projection: the two sides meet in the width of their hidden states, which must be equal.

    As SigLIP was trained: no BOS, always padded to full length (64) and never masked; it pools at the last slot.

    sign is −1, as the paper and its release have it on LLaVA-Video; their figures were measured so. By itself it was
    never measured: `eadp.diagnose_sign` does.
    """

    def __init__(
        self,
        *,
        text_model: SiglipTextModel,
        post_layernorm: nn.LayerNorm,
        tokenizer: Any,
        sign: float = -1.0,
        normalised: bool = False,
    ) -> None:
        super().__init__(text_model=text_model, post_layernorm=post_layernorm, tokenizer=tokenizer, sign=sign)
        self.normalised = normalised
        width, expected = post_layernorm.weight.shape[0], text_model.config.hidden_size
        if width != expected:
            raise ValueError(
                f"the vision tower has {width} channels, but SigLIP's text encoder has {expected}: "
                "give the SigLIP that the tower was taken from"
            )

    def _states(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        output = self.text_model(input_ids=ids)
        return output.last_hidden_state, output.pooler_output

    def _slot_rows(self, ids: list[int]) -> list[list[int]]:
        """SigLIP's tokenizer drops what is too long, but for the end."""
        length = self.text_model.config.max_position_embeddings
        return [ids] if len(ids) <= length else [[*ids[: length - 1], ids[-1]]]

    def align(self, states: Tensor) -> Tensor:
        """The tower's rows as they are, or through its last norm."""
        return self.post_layernorm(states) if self.normalised else states
