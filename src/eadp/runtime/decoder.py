"""What pruning between layers needs of a language model besides its layers."""

from __future__ import annotations

import inspect
from typing import Any, cast

from torch import Tensor, nn

from eadp.runtime.masks import attention_type

FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
"""The names that language models give to the norm after their last layer."""


class Decoder:
    """The configuration, the rotary embedding and the final norm of a language model."""

    def __init__(self, text: nn.Module) -> None:
        self.text = text
        self.config: Any = text.config

    def rotary_embeddings(self, states: Tensor, ids: Tensor, layer: int) -> Any:
        """Compute the position embeddings that a layer gets for these position ids, as the model itself does."""
        rotary = self.text.get_submodule("rotary_emb")
        # `forward` skips our hooks, which are for the model's own call.
        forward = cast(Any, rotary).forward
        if "layer_type" in inspect.signature(type(rotary).forward).parameters:
            return forward(states, ids, layer_type=attention_type(self.config, layer))
        return forward(states, ids)

    def apply_final_norm(self, states: Tensor) -> Tensor:
        """Apply the norm after the last layer.

        Raises:
            ValueError: If the language model has no norm with a known name.
        """
        children = dict(self.text.named_children())
        norm = next((children[name] for name in FINAL_NORMS if name in children), None)
        if norm is None:
            raise ValueError(
                f"the method compares hidden states after the final norm of {type(self.text).__name__}, which has "
                f"none named {', '.join(FINAL_NORMS)}; choose another method"
            )
        return norm(states)
