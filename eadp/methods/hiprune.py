"""HiPrune: what the tower's middle layers hold on to, what lies around it, and what its deep layers use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, alike, checks, ranked
from eadp.core.types import Grid
from eadp.methods.attention import counted, received, tower_layers
from eadp.methods.base import Method, Need

LLAVA, QWEN = (9, 24), (16, 32)
"""The object layer, and of how many, on LLaVA's CLIP and on Qwen2.5-VL's tower."""


@dataclass(frozen=True)
class HiPrune(Method):
    """Keep anchors, their neighbours, and registers, by attention received: the mean over heads and queries.

    Anchors: the round(αT/5) highest at the object layer. Buffers: the 4 neighbours of each on the grid, within the
    image. Registers: the highest at the deep layer, until there are T.

    Paper: "HiPrune: Training-Free Visual Token Pruning via Hierarchical Attention in Vision-Language Models", AAAI
    2026. α and the layers are its own: object layer 9 of LLaVA's 24 and 16 of Qwen2.5-VL's 32, deep layer the last but
    one on LLaVA and the last on Qwen. Towers of other depths scale the object layer; the notes say which were used.
    Crops and frames, each an image to the tower, share the budget alike.
    Deviations: layers are counted from 0, our reading; where anchors and buffers come to more than T (α near 1), the
    buffers of the weakest anchors go.
    """

    name: ClassVar[str] = "hiprune"
    citation: ClassVar[str] = "HiPrune (AAAI 2026)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention"})
    presets: ClassVar[tuple[str, ...]] = ("LLaVA: layers 9, 22 of 24", "Qwen: layers 16, 31 of 32")

    alpha: float = 0.1
    """α, the share of the budget for anchors and their buffers. Paper."""
    object_layer: int | None = None
    """Counted from 0. None: the paper's, scaled with the depth of the tower."""
    deep_layer: int | None = None
    """Counted from 0, or from the end if negative. None: the paper's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.unit_interval("alpha", self.alpha)

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        qwen = family.startswith("qwen")
        layer, of = QWEN if qwen else LLAVA
        wanted = (
            int(layer * depth / of + 0.5) if self.object_layer is None else self.object_layer,
            max(-depth, -1 if qwen else -2) if self.deep_layer is None else self.deep_layer,
        )
        return tuple(counted(self.name, each, depth) for each in wanted)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        middle, deep = tower_layers(self.name, tokens, 2)
        at_middle, at_deep = received(middle), received(deep)
        quotas = alike(tokens.grids, self.count(len(tokens)))
        order = torch.cat(
            [
                self._block(at_middle[block], at_deep[block], grid, quota) + block.start
                for block, grid, quota in zip(tokens.blocks, tokens.grids, quotas, strict=True)
            ]
        )
        return Selection(
            order.sort().values,
            len(tokens),
            self.name,
            order=order,
            quotas=tuple(quotas),
            scores=at_deep,
            notes=(f"tower layers {middle.layer} (object) and {deep.layer} (deep) of {deep.depth}",),
        )

    def _block(self, middle: Tensor, deep: Tensor, grid: Grid, quota: int) -> Tensor:
        """Anchors first, then buffers, then registers."""
        anchors = ranked(middle)[: int(self.alpha * quota / 5 + 0.5)].tolist()
        registers = ranked(deep).tolist()
        buffers = [cell for anchor in anchors for cell in neighbours(anchor, grid)]
        # A dict keeps the first of each.
        return torch.tensor(list(dict.fromkeys([*anchors, *buffers, *registers]))[:quota], dtype=torch.long).to(
            deep.device
        )


def neighbours(cell: int, grid: Grid) -> list[int]:
    """The cells above, left, right and below, within the grid."""
    rows, columns = grid
    row, column = divmod(cell, columns)
    around = [(row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)]
    return [r * columns + c for r, c in around if 0 <= r < rows and 0 <= c < columns]
