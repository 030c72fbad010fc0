"""EADP: keep only the visual tokens that serve the question."""

from eadp import core
from eadp._version import __version__
from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods import Method
from eadp.methods.eadp import EADP

__all__ = ["EADP", "Method", "Selection", "TextGuide", "VisualTokens", "__version__", "core"]
