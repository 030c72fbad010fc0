"""The base class of methods that prune a clip as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from eadp.methods.base import Newlines, Positions
from eadp.methods.before import BeforeMethod

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class VideoMethod(BeforeMethod):
    """A method that compares the frames of a clip with each other.

    `VisualTokens.frames` gives it T frames of n tokens. A still image, with all its crops, is a clip of one frame.

    Attributes:
        exact: Keep exactly `keep` tokens, for comparisons at equal budgets.
    """

    newlines: ClassVar[Newlines] = "all"

    exact: bool = field(default=False, kw_only=True)

    def with_exact_count(self) -> Self:
        return replace(self, exact=True)

    def positions_for(self, family: str) -> Positions:
        return "keep" if family.startswith("qwen") else self.positions

    def share_of(self, total: int) -> float:
        """Return `keep` as a share of `total` tokens."""
        return self.keep if isinstance(self.keep, float) else self.count_to_keep(total) / total
