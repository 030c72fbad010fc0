"""Attach and detach: spans → budget → select → compact. Everything that must hold is held here."""

from eadp.runtime.attach import Pruned, attach, detach

__all__ = ["Pruned", "attach", "detach"]
