"""PyramidDrop: halve the tokens three times on the way through the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from eadp.core import Selection
from eadp.methods.base import Need, Positions, register_method
from eadp.methods.inside import AttentionFrom, Cut, InsideMethod, LayerView, select_highest
from eadp.methods.settings import Range


@register_method
@dataclass(frozen=True)
class PyramidDrop(InsideMethod):
    """At the input of layers 8, 16 and 24, keep 1/2, 1/4 and 1/8 of the tokens.

    Kept are the tokens to which the last token of the prompt would attend most in the layer that follows.

    Paper: "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy Reduction", CVPR
    2025.

    Release, the default: ⌊N·share⌋ of the original N tokens stay (here at least 1). After each cut all tokens are
    renumbered, so that the scores of the next cut depend on the new positions.

    Departures: `attach(positions="keep")` keeps positions. The release truncates sequences to 2048 tokens; we do not.
    Layers scale with the depth of the model. With `keep`, each cut keeps the same share, which for 1/8 is the default
    up to rounding.

    Attributes:
        layers: See `InsideMethod`.
        shares: The share of all tokens that stays after each cut where `keep` is not given.
    """

    name: ClassVar[str] = "pyramiddrop"
    citation: ClassVar[str] = "PyramidDrop (CVPR 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"language_attention"})
    positions: ClassVar[Positions] = "renumber"
    presets: ClassVar[tuple[str, ...]] = ("without keep: 1/2, 1/4, 1/8",)
    attention_from: ClassVar[AttentionFrom] = "next"

    layers: tuple[int, ...] = (8, 16, 24)
    shares: tuple[Annotated[float, Range(0, 1, open_low=True)], ...] = (0.5, 0.25, 0.125)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is None and len(self.shares) != len(self.layers):
            raise ValueError(f"{len(self.layers)} layers need as many shares, got {self.shares}; or give keep=")

    def default_cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        return self.place_cuts([max(1, int(total * share)) for share in self.shares], depth)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        return select_highest(view.attention()[0], cut, self.name)
