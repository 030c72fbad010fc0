"""SigLIP's text encoder, for models that see through SigLIP's vision tower (LLaVA-OneVision, LLaVA-Video)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from eadp.models.guides.towers import TowerGuide

if TYPE_CHECKING:
    from transformers import SiglipTextModel


class SiglipGuide(TowerGuide):
    """v = the tower's output, t = last hidden state of the text encoder, pooled = its pooler output.

    `align` takes the tower's `last_hidden_state`, on which `post_layernorm` has been applied. LLaVA-OneVision itself
    reads `hidden_states[-1]`, the same states before that norm. (Its tower lost SigLIP's last block and its head.)
    SigLIP has no projection: the two sides meet in the width of their hidden states, which must be equal.

    `post_layernorm` only says where the tower is and how wide: the guide follows it.

    As SigLIP was trained: no BOS, always padded to full length (64) and never masked; it pools at the last slot.

    sign is −1: SigLIP's sigmoid loss, too, compares one pooled vector a side, which is the cause that the paper gives
    for negating, and it makes no exception for the SigLIP of LLaVA-Video. It was never measured by itself there.
    """

    def __init__(
        self, *, text_model: SiglipTextModel, post_layernorm: nn.LayerNorm, tokenizer: Any, sign: float = -1.0
    ) -> None:
        super().__init__(text_model=text_model, post_layernorm=post_layernorm, tokenizer=tokenizer, sign=sign)
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
        """The tower's output as it is."""
        return states
