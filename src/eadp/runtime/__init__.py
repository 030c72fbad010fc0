"""Attach and detach: find the images of a prompt, let a method select tokens, and shorten the prompt accordingly."""

from eadp.runtime.attach import Pruned, attach, detach

__all__ = ["Pruned", "attach", "detach"]
