"""How a model is being pruned: the methods, and what goes with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from eadp.methods import BeforeMethod, InsideMethod, Method, NoPruning
from eadp.methods.base import Newlines, Positions
from eadp.runtime.choose import BudgetOver, Chooser
from eadp.runtime.vision import VisionSide

if TYPE_CHECKING:
    from eadp.models.guides.base import Guide

Question = str | Sequence[str] | Callable[[Tensor], str]
"""One question for all prompts, one per prompt, or a function that reads it from the ids of a prompt."""


@dataclass(frozen=True)
class Settings:
    """The settings of `attach`, resolved for one model.

    Attributes:
        before: The method that prunes before the language model.
        inside: The method that prunes inside it.
        guide: The text guide; None where the method reads no text.
        question: The question of the prompts. None: the text of the last user turn.
        positions: What kept tokens do with their positions. None: as in the method's release.
        budget_over: What one budget is for.
        newlines: Which newlines stay. None: as in the method's release.
        arguments: The arguments that the settings were made from, by name.
    """

    before: BeforeMethod | None
    inside: InsideMethod | None
    guide: Guide | None = None
    question: Question | None = None
    positions: Positions | None = None
    budget_over: BudgetOver = "image"
    newlines: Newlines | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods, in the order in which they prune."""
        return tuple(method for method in (self.before, self.inside) if method is not None)

    @property
    def entering(self) -> BeforeMethod:
        """The method that decides which tokens enter the language model."""
        return self.before or NoPruning()

    def chooser(self, vision: VisionSide) -> Chooser:
        """What selects the tokens that enter the language model."""
        newlines = None if self.before is None else self.newlines
        return Chooser(self.entering, self.guide, vision, self.budget_over, newlines)
