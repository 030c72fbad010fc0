"""EADP: keep only the visual tokens that the question needs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eadp import core, methods
from eadp._version import __version__
from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods import (
    DART,
    EADP,
    EVS,
    SCOPE,
    TRIM,
    VCAST,
    BeforeMethod,
    CDPruner,
    DivPrune,
    Downsample,
    FastV,
    FastVID,
    FlashVID,
    FLoC,
    HiPrune,
    HoliTom,
    InsideMethod,
    Method,
    MMTok,
    NoPruning,
    Pool,
    PruMerge,
    PyramidDrop,
    Random,
    SparseVLM,
    TopK,
    Uniform,
    VidCom2,
    VisionZip,
    VisPruner,
    get_method,
    list_methods,
    register_method,
)

if TYPE_CHECKING:
    from eadp.pocket import load as load_pocket
    from eadp.runtime.attach import Pruned, attach, detach
    from eadp.runtime.sign import diagnose_sign
    from eadp.view import plot, to_html

__all__ = [
    "DART",
    "EADP",
    "EVS",
    "SCOPE",
    "TRIM",
    "VCAST",
    "BeforeMethod",
    "CDPruner",
    "DivPrune",
    "Downsample",
    "FLoC",
    "FastV",
    "FastVID",
    "FlashVID",
    "HiPrune",
    "HoliTom",
    "InsideMethod",
    "MMTok",
    "Method",
    "NoPruning",
    "Pool",
    "PruMerge",
    "Pruned",
    "PyramidDrop",
    "Random",
    "Selection",
    "SparseVLM",
    "TextGuide",
    "TopK",
    "Uniform",
    "VidCom2",
    "VisPruner",
    "VisionZip",
    "VisualTokens",
    "__version__",
    "attach",
    "core",
    "detach",
    "diagnose_sign",
    "get_method",
    "list_methods",
    "load_pocket",
    "methods",
    "plot",
    "register_method",
    "to_html",
]

_LAZY = {
    "Pruned": ("eadp.runtime", "Pruned"),
    "attach": ("eadp.runtime", "attach"),
    "detach": ("eadp.runtime", "detach"),
    "diagnose_sign": ("eadp.runtime.sign", "diagnose_sign"),
    "load_pocket": ("eadp.pocket", "load"),
    "plot": ("eadp.view", "plot"),
    "to_html": ("eadp.view", "to_html"),
}
"""Names that need transformers, and where they are. They are imported at first use, so that `import eadp` is fast."""


if not TYPE_CHECKING:  # where type checkers saw it, they would accept any misspelt name

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _LAZY[name]
        return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    helpers = {"Any", "TYPE_CHECKING", "annotations", "import_module"}
    return sorted({*globals(), *__all__} - helpers)
