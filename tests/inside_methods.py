"""Methods inside the language model that remember what another one chose, or repeat it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from eadp.core import Selection
from eadp.methods import make
from eadp.methods.inside import Cut, InsideMethod, LayerView

NAMES = ("fastv", "pyramiddrop", "sparsevlm", "dart")


def method(name: str, keep: int | float = 0.3, **settings: Any) -> InsideMethod:
    """The method with a budget that counts what is left after its last cut."""
    chosen = make(name, keep=keep, budget="after_prune", **settings)
    assert isinstance(chosen, InsideMethod)
    return chosen


@dataclass(frozen=True)
class Recording(InsideMethod):
    """Chooses as `of` does and keeps what it chose."""

    of: InsideMethod = field(kw_only=True)
    log: list[Selection] = field(default_factory=list)

    def __post_init__(self) -> None:
        # On the instance: a class with a name would be listed among the methods.
        for name in ("name", "layers", "attends"):
            object.__setattr__(self, name, getattr(self.of, name))

    def cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        return self.of.cuts(total, depth)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        self.log.append(self.of.choose(cut, view))
        return self.log[-1]

    def frozen(self) -> Replaying:
        """The same choice from now on, whatever the last token of the prompt is."""
        return Replaying(of=self.of, choices=cycle(self.log))


@dataclass(frozen=True)
class Replaying(Recording):
    choices: Iterator[Selection] = field(kw_only=True)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        return next(self.choices)
