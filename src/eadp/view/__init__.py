"""Look: what was kept and why, as a picture (`figure`), as one page (`report`), live in a browser (`page`)."""

from eadp.view.exhibit import Exhibit, Take
from eadp.view.figure import draw
from eadp.view.report import to_html

__all__ = ["Exhibit", "Take", "draw", "to_html"]
