"""PyramidDrop: halve the tokens three times on the way up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eadp.core import Selection, checks
from eadp.methods.base import Need, Positions
from eadp.methods.inside import Attends, Cut, InsideMethod, LayerView, kept_by


@dataclass(frozen=True)
class PyramidDrop(InsideMethod):
    """At the input of layers 8, 16 and 24 keep 1/2, 1/4 and 1/8 of the tokens: those to which the last token of the
    prompt would attend most in the layer that follows.

    Paper: "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy Reduction" (CVPR
    2025). The default is its release: ⌊N·share⌋ of the original N tokens stay (at least 1 here), and after each cut all
    tokens are renumbered, so that the next cut's scores already go by the new positions. `positions="keep"` leaves
    them. The release also cuts long sequences off at 2048 tokens; here nothing is cut off. Layers scale with the
    model's depth; with `keep` each cut leaves the same share, which at 1/8 is the default up to rounding.
    """

    name: ClassVar[str] = "pyramiddrop"
    citation: ClassVar[str] = "PyramidDrop (CVPR 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"language_attention"})
    positions: ClassVar[Positions] = "renumber"
    presets: ClassVar[tuple[str, ...]] = ("without keep: 1/2, 1/4, 1/8",)
    attends: ClassVar[Attends] = "next"

    layers: tuple[int, ...] = (8, 16, 24)
    shares: tuple[float, ...] = (0.5, 0.25, 0.125)
    """What is left after each cut where `keep` is not given, as shares of all tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in self.shares:
            checks.share("shares", each)
        if self.keep is None and len(self.shares) != len(self.layers):
            raise ValueError(f"{len(self.layers)} layers need as many shares, got {self.shares}; or give keep=")

    def default_cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        return self.at([max(1, int(total * share)) for share in self.shares], depth)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        return kept_by(view.attention()[0], cut, self.name)
