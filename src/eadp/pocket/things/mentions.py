"""Names of things in a text."""

from __future__ import annotations

import re
from functools import cache

from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.scene import SIGN_COLOURS, SIGN_NAME
from eadp.pocket.things.wording import plural


def find_mentions(text: str) -> list[tuple[int, int, str]]:
    """Find the names of things in a text: where each begins and ends, and the name in its singular form."""
    names = _names()
    return [(*match.span(), names[match[0].lower()]) for match in _pattern().finditer(text)]


@cache
def _names() -> dict[str, str]:
    singular = [*(kind.name for kind in kinds()), *(f"{colour} {SIGN_NAME}" for colour in SIGN_COLOURS)]
    return {form: name for name in singular for form in (name, plural(name))}


@cache
def _pattern() -> re.Pattern[str]:
    forms = sorted(_names(), key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(map(re.escape, forms))})\b", re.IGNORECASE)
