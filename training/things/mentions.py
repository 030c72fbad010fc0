"""Where in a scene the things are that a text names."""

from __future__ import annotations

from eadp.pocket.things.questions import View
from eadp.pocket.things.render import PATCH

MOST = 6
"""The largest number of things of one name that is told apart."""

UNKNOWN = -100
"""The row and column of things that are absent, or that are several; losses ignore it."""


def locate(view: View, name: str) -> tuple[int, int, int]:
    """Return how many things of a name a scene shows, and the column and row of patches of the only one."""
    found = [index for index in view.noticed if view.names[index] == name]
    if len(found) != 1:
        return min(len(found), MOST), UNKNOWN, UNKNOWN
    across, down = (int(min(max(c, 0), view.side - 1)) // PATCH for c in view.centres[found[0]])
    return 1, across, down
