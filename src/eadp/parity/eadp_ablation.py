"""Replay of EADP's ablations on LLaVA-1.5."""

from eadp.parity.eadp_llava import replay

__all__ = ["replay"]
