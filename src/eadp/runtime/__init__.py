"""Attach and detach: spans → budget → select → compact. Everything that must hold is held here."""

from eadp.compat import require_transformers

require_transformers("eadp")

from eadp.runtime.attach import Pruned, attach  # noqa: E402 (an old transformers would fail here without a sentence)

__all__ = ["Pruned", "attach"]
