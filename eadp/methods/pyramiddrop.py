"""PyramidDrop: halve the tokens three times on the way up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eadp.core import Selection, checks
from eadp.methods.base import Need
from eadp.methods.inside import Attends, Cut, InsideMethod, LayerView, kept_by


@dataclass(frozen=True)
class PyramidDrop(InsideMethod):
    """After layers 8, 16 and 24 keep 1/2, 1/4 and 1/8 of the tokens: those to which the last token of the prompt would
    attend most in the next layer.

    Paper: "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy Reduction" (CVPR
    2025). Defaults: the paper's. Deviations: layers scale with the model's depth; with `keep` each cut leaves the
    same share, which at 1/8 is the default.
    """

    name: ClassVar[str] = "pyramiddrop"
    citation: ClassVar[str] = "PyramidDrop (CVPR 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"language_attention"})
    presets: ClassVar[tuple[str, ...]] = ("without keep: 1/2, 1/4, 1/8",)
    attends: ClassVar[Attends] = "next"

    layers: tuple[int, ...] = (8, 16, 24)
    shares: tuple[float, ...] = (0.5, 0.25, 0.125)
    """What is left after each cut where `keep` is not given, as shares of all tokens. The paper's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in self.shares:
            checks.share("shares", each)
        if self.keep is None and len(self.shares) != len(self.layers):
            raise ValueError(f"{len(self.layers)} layers need as many shares, got {self.shares}; or give keep=")

    def default_counts(self, total: int) -> tuple[int, ...]:
        return tuple(max(1, int(share * total + 0.5)) for share in self.shares)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        return kept_by(view.attention()[0], cut, self.name)
