"""Attach and detach: spans → budget → select → compact. Everything that must hold is held here."""

import eadp.runtime.requirements  # noqa: F401 (it must be the first import)
from eadp.runtime.attach import Pruned, attach

__all__ = ["Pruned", "attach"]
