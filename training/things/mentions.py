"""Names of things in a text, and where in a scene the named things are."""

from __future__ import annotations

import re
from functools import cache

from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.questions import View
from eadp.pocket.things.render import PATCH
from eadp.pocket.things.scene import SIGN_COLOURS, SIGN_NAME
from eadp.pocket.things.wording import plural

MOST = 6
"""The largest number of things of one name that is told apart."""

UNKNOWN = -100
"""The row and column of things that are absent, or that are several; losses ignore it."""


def find_mentions(text: str) -> list[tuple[int, str]]:
    """Find the names of things in a text: the index of the last letter of each, and the name in its singular form."""
    names = _names()
    return [(match.end() - 1, names[match[0].lower()]) for match in _pattern().finditer(text)]


def locate(view: View, name: str) -> tuple[int, int, int]:
    """Return how many things of a name a scene shows, and the column and row of patches of the only one."""
    found = [index for index in view.noticed if view.names[index] == name]
    if len(found) != 1:
        return min(len(found), MOST), UNKNOWN, UNKNOWN
    across, down = (int(min(max(c, 0), view.side - 1)) // PATCH for c in view.centres[found[0]])
    return 1, across, down


@cache
def _names() -> dict[str, str]:
    singular = [*(kind.name for kind in kinds()), *(f"{colour} {SIGN_NAME}" for colour in SIGN_COLOURS)]
    return {form: name for name in singular for form in (name, plural(name))}


@cache
def _pattern() -> re.Pattern[str]:
    forms = sorted(_names(), key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(map(re.escape, forms))})\b", re.IGNORECASE)
