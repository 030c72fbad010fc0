"""Where in a scene the things are that a text names."""

from __future__ import annotations

from eadp.pocket.things.questions import Question
from eadp.pocket.things.render import PATCH
from eadp.pocket.things.view import View

MOST = 6
"""The largest number of things of one name that is told apart."""

UNKNOWN = -100
"""The row and column of things that are absent, or that are several; losses ignore it."""


def locate(view: View, name: str) -> tuple[int, int, int]:
    """Return how many things of a name a scene shows, and the column and row of patches of the only one."""
    found = [index for index in view.noticed if view.names[index] == name]
    if len(found) != 1:
        return min(len(found), MOST), UNKNOWN, UNKNOWN
    return 1, *_patch(view, found[0])


def locate_answer(view: View, question: Question) -> tuple[int, int]:
    """Return the column and row of patches of the thing that an answer names; unknown if it names none, or several."""
    found = [index for index in question.about if view.names[index] == question.answer]
    return _patch(view, found[0]) if len(found) == 1 else (UNKNOWN, UNKNOWN)


def _patch(view: View, index: int) -> tuple[int, int]:
    across, down = (int(min(max(c, 0), view.side - 1)) // PATCH for c in view.centres[index])
    return across, down
