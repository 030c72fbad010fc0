"""EADP: keep only the visual tokens that serve the question."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eadp import core
from eadp._version import __version__
from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods import Method
from eadp.methods.eadp import EADP

if TYPE_CHECKING:
    from eadp.pocket import load as load_pocket
    from eadp.runtime.attach import Pruned, attach
    from eadp.runtime.sign import diagnose_sign

__all__ = [
    "EADP",
    "Method",
    "Pruned",
    "Selection",
    "TextGuide",
    "VisualTokens",
    "__version__",
    "attach",
    "core",
    "diagnose_sign",
    "load_pocket",
]

_NEED_TRANSFORMERS = {
    "attach": ("eadp.runtime", "attach"),
    "Pruned": ("eadp.runtime", "Pruned"),
    "diagnose_sign": ("eadp.runtime.sign", "diagnose_sign"),
    "load_pocket": ("eadp.pocket", "load"),
}


def __getattr__(name: str) -> Any:
    """What stands on transformers is imported when it is first asked for."""
    if name not in _NEED_TRANSFORMERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, what = _NEED_TRANSFORMERS[name]
    return getattr(import_module(module), what)
