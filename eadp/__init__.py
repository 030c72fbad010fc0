"""EADP: keep only the visual tokens that serve the question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eadp import core
from eadp._version import __version__
from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods import Method
from eadp.methods.eadp import EADP

if TYPE_CHECKING:
    from eadp.runtime import Pruned, attach

__all__ = ["EADP", "Method", "Pruned", "Selection", "TextGuide", "VisualTokens", "__version__", "attach", "core"]

# What stands on transformers is imported when it is first asked for.
_LAZY = {"attach": "eadp.runtime", "Pruned": "eadp.runtime"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
