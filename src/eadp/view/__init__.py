"""Show which tokens were kept, and why: as a figure, as an HTML page (`report`), or live in a browser (`page`)."""

from eadp.view.comparison import Comparison, MethodResult
from eadp.view.figure import draw_figure
from eadp.view.report import render_report
from eadp.view.selection import plot, to_html

__all__ = ["Comparison", "MethodResult", "draw_figure", "plot", "render_report", "to_html"]
