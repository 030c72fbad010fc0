"""Replay of EADP on LLaVA-NeXT."""

from eadp.parity.eadp_llava import replay

__all__ = ["replay"]
