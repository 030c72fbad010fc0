"""What every method has: a name, a paper, a budget, and `select`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from eadp.core import Grid, Selection, TextGuide, TextLayout, VisualTokens

Stage = Literal["before", "inside"]
Need = Literal["text", "vision_attention", "tower_rows", "language_attention", "pixels"]

Positions = Literal["keep", "renumber"]
"""Kept tokens keep their positions (and coordinates), or are renumbered without gaps."""

Newlines = Literal["none", "kept rows", "all", "chosen"]
"""Which newline tokens of an image stay: none, those of rows with a kept token, all, or those that the method chose."""

REGISTRY: dict[str, type[Method]] = {}


@dataclass(frozen=True)
class Method(ABC):
    """A pruning method: a frozen set of settings and the rule that picks tokens by them.

    Subclasses say who they are in class variables, add their settings as fields and write `select`. Defining one
    with a `name` registers it.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    stage: ClassVar[Stage] = "before"
    needs: ClassVar[frozenset[Need]] = frozenset()
    merges: ClassVar[bool] = False
    by_cls: ClassVar[bool] = False
    """Goes by what the vision tower's CLS token attends to, where it has one: then only that row is computed."""
    positions: ClassVar[Positions] = "renumber"
    """What the method's release does with the positions of kept tokens. `attach(positions=…)` overrides it."""
    newlines: ClassVar[Newlines] = "none"
    """Which newlines its release keeps. `attach(newlines=…)` overrides it."""
    presets: ClassVar[tuple[str, ...]] = ()
    """Settings that its paper or its facts name, in words."""

    keep: int | float | None = field(default=None, kw_only=True)
    """How many tokens stay: a count (128) or a share of each image's tokens (0.25)."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            REGISTRY[cls.name] = cls

    def __post_init__(self) -> None:
        keep = self.keep
        if isinstance(keep, bool) or not isinstance(keep, (int, float, type(None))):
            raise TypeError(f"keep must be a count (128) or a share (0.25), got {keep!r}")
        if isinstance(keep, float) and not 0 < keep <= 1:
            raise ValueError(f"keep as a share must lie in (0, 1], got {keep}; for a count give an int")
        if isinstance(keep, int) and keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")

    def count(self, total: int) -> int:
        """The count that `keep` asks for among `total` tokens."""
        if self.keep is None:
            raise ValueError(f"{self.name} needs keep= (a count such as 128, or a share such as 0.25)")
        if isinstance(self.keep, float):
            return max(1, round(self.keep * total))
        if self.keep > total:
            raise ValueError(f"keep={self.keep} is more than the {total} tokens there are")
        return self.keep

    def positions_on(self, family: str) -> Positions:
        """`positions`, where the release has another way with some models. family: the model's `model_type`."""
        return self.positions

    @property
    def text_layout(self) -> TextLayout:
        """How a text encoder of fixed length is to be given the question."""
        return "words"

    @property
    def keeps_deepstack(self) -> bool:
        """Whether what a model adds to its visual tokens again in its first layers goes with the kept ones."""
        return True

    @classmethod
    def preset(cls, name: str, family: str) -> dict[str, Any]:
        """The settings of a named preset on this family of models (its `model_type`)."""
        raise ValueError(f"{cls.name} has no preset {name!r}: its defaults are its release's")

    def sent(self, patches: int, newlines: int = 0) -> int:
        """How many tokens the language model gets of an image of so many patches, told before it is seen.

        newlines: those that the model sets between its rows, of which this counts what the method itself chooses.
        """
        return self.count(patches)

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        """The layers of a vision tower of this depth, counted from 0, whose attention `select` wants in
        `tokens.attention`. family: the `model_type` of the model."""
        return ()

    def resolution(self, grids: Sequence[Grid], square: bool) -> list[Grid]:
        """The grids at which `select` wants the blocks in `tokens.downsampled`; (0, 0) for a block that goes.
        Asked of methods that need "pixels". square: the model takes no others."""
        return []

    @abstractmethod
    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        """Pick the tokens of one image (or clip) that stay."""
