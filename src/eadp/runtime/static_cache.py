"""A static KV cache that is as large as the pruned prompt needs it to be."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import StaticCache

from eadp.compat import StaticLayer


class FittedLayer(StaticLayer):
    """One layer of a `FittedStaticCache`: its size is settled when the first tokens arrive."""

    def __init__(self, new_tokens: int) -> None:
        super().__init__(max_cache_len=new_tokens)
        self.new_tokens = new_tokens

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the slots: as many as tokens are being added, and those for new tokens."""
        self.max_cache_len = key_states.shape[-2] + self.new_tokens
        super().lazy_initialization(key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys, and the first of them, for masks of `query_length` queries."""
        return super().get_mask_sizes(query_length) if self.is_initialized else (query_length + self.new_tokens, 0)

    def reset(self) -> None:
        """Empty the layer. The next prompt settles its size again."""
        super().reset()
        self.keys = self.values = None
        self.is_initialized = False


class FittedStaticCache(StaticCache):
    """A static KV cache whose layers hold the prompt, as it is after pruning, and a number of new tokens.

    Memory is allocated during the prefill, when the number of tokens that stay is known, so a pruned prompt needs less
    of it. With methods inside the language model, deeper layers are smaller. Layers with a sliding window have the size
    of their window. As with any static cache, the sizes do not change while tokens are generated.
    """

    def __init__(self, config: Any, new_tokens: int) -> None:
        """Set up an empty cache.

        Args:
            config: The configuration of the model.
            new_tokens: How many tokens fit in after the prompt.

        Raises:
            ValueError: If `new_tokens` is not a positive number, or the model needs another kind of layer.
        """
        if isinstance(new_tokens, bool) or not isinstance(new_tokens, int) or new_tokens < 1:
            raise ValueError(f"a static cache needs room for at least one new token, got {new_tokens!r}")
        # Sliding layers are no larger than their window. Nothing is allocated before the first tokens arrive.
        super().__init__(config=config, max_cache_len=2**31)
        for number, layer in enumerate(list[Any](self.layers)):
            if type(layer) is StaticLayer:
                self.layers[number] = FittedLayer(new_tokens)
            elif not layer.is_sliding:
                raise ValueError(f"eadp has no static cache of this kind: {type(layer).__name__}; use a dynamic cache")
