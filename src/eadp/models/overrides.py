"""Attributes of single objects, overridden for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ABSENT = object()
"""In place of the former value of an attribute that an object did not have."""


class Overrides:
    """Overridden attributes, which `undo` or the end of a `with` block restores in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._overridden: list[tuple[Any, str, Any]] = []

    def override(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of one object."""
        former = vars(owner).get(name, ABSENT)
        self._overridden.append((owner, name, former))
        object.__setattr__(owner, name, value)
        if former is ABSENT:
            self._undo.append(lambda: object.__delattr__(owner, name))
        else:
            self._undo.append(lambda: object.__setattr__(owner, name, former))

    def __enter__(self) -> Overrides:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __len__(self) -> int:
        return len(self._undo)

    def undo(self) -> None:
        """Restore every attribute. A second call does nothing."""
        while self._undo:
            self._undo.pop()()
        self._overridden.clear()
