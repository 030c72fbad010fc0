"""What cutting between layers needs of a language model beside the layers themselves."""

from __future__ import annotations

import inspect
from typing import Any, cast

from torch import Tensor, nn

from eadp.runtime.masks import kind_of

FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
"""What language models call the norm behind their last layer."""


class Decoder:
    """A language model's configuration, its rotary embedding and its final norm."""

    def __init__(self, text: nn.Module) -> None:
        self.text = text
        self.config: Any = text.config

    def turned(self, states: Tensor, ids: Tensor, layer: int) -> Any:
        """The position embeddings that a layer gets for these position ids, as the model itself makes them."""
        rotary = self.text.get_submodule("rotary_emb")
        # Past the hooks, which are there for the model's own call.
        forward = cast(Any, rotary).forward
        if "layer_type" in inspect.signature(type(rotary).forward).parameters:
            return forward(states, ids, layer_type=kind_of(self.config, layer))
        return forward(states, ids)

    def normed(self, states: Tensor) -> Tensor:
        """The states through the norm behind the last layer."""
        children = dict(self.text.named_children())
        norm = next((children[name] for name in FINAL_NORMS if name in children), None)
        if norm is None:
            raise ValueError(
                f"the method compares hidden states behind the final norm of {type(self.text).__name__}, which has "
                f"none named {', '.join(FINAL_NORMS)}; choose another method"
            )
        return norm(states)
