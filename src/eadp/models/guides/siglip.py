"""SigLIP's text encoder, for models with SigLIP's vision tower (LLaVA-OneVision, LLaVA-Video)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from eadp.models.guides.towers import TowerGuide

if TYPE_CHECKING:
    from transformers import SiglipTextModel


class SiglipGuide(TowerGuide):
    """v = the states that the model projects, t = last hidden state of the text encoder, pooled = its pooler output.

    `align` takes the states that LLaVA-OneVision reads, as the release of EADP does. They come before `post_layernorm`,
    from a tower without SigLIP's last block and head. `normalised=True` applies that norm first, as SigLIP does before
    its own head. SigLIP has no projection: both encoders must have hidden states of the same width.

    As in SigLIP's training, a text has no BOS, is always padded to full length (64) and never masked, and is pooled at
    the last slot.

    The sign is −1, as in the paper and its release on LLaVA-Video; their results were measured that way. The sign alone
    was never measured: `eadp.diagnose_sign` does that.
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

    def _states(self, ids: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        output = self.text_model(input_ids=ids)
        return output.last_hidden_state, output.pooler_output

    def _slot_rows(self, ids: list[int]) -> list[list[int]]:
        """SigLIP's tokenizer truncates a long text, but keeps its EOS."""
        length = self.text_model.config.max_position_embeddings
        return [ids] if len(ids) <= length else [[*ids[: length - 1], ids[-1]]]

    def align(self, states: Tensor) -> Tensor:
        """Return the tower's states unchanged, or after its last norm."""
        return self.post_layernorm(self._to_norm(states)) if self.normalised else states
