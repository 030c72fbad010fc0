"""HiPrune: what the tower's middle layers hold on to, what lies around it, and what its deep layers use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, checks, rank_descending, split_evenly
from eadp.core.types import Grid
from eadp.methods.attention import counted, received, tower_layers
from eadp.methods.base import Method, Need, Positions

LLAVA, QWEN = (9, 24), (16, 32)
"""The object layer, counted from 1, and of how many, on LLaVA's CLIP and on Qwen2.5-VL's tower."""

Buffers = Literal["flat", "grid"]


@dataclass(frozen=True)
class Picked:
    """The tokens of one crop, counted from its start. anchors: highest first; buffers: those beside them, no token
    twice; registers: highest first, on Qwen perhaps some of the former again."""

    anchors: Tensor
    buffers: Tensor
    registers: Tensor

    @property
    def order(self) -> Tensor:
        """Anchors, buffers, registers, each token once."""
        return _once([*self.anchors.tolist(), *self.buffers.tolist(), *self.registers.tolist()]).to(self.anchors)


@dataclass(frozen=True)
class HiPrune(Method):
    """Keep anchors, their neighbours, and registers, by attention received: mean over heads, and over queries.

    Anchors: the round(αK/5) highest at the object layer, halves to even. Buffers: index ± 1 and ± width of each anchor,
    held within 0 … N − 1: at the ends of a row they lie in the next one. Registers: the highest at the deep layer until
    there are K. Crops and frames, each an image to the tower, keep ⌊keep/crops⌋ each.

    Paper: "HiPrune: Training-Free Visual Token Pruning via Hierarchical Attention in Vision-Language Models", AAAI
    2026. The default is the authors' release. Its object layer is the 9th of 24 on LLaVA and the 16th of 32 on Qwen,
    its deep layer the last but one on LLaVA and the last on Qwen; towers of other depths scale the object layer, and
    the notes say which were used. Kept tokens are renumbered on LLaVA and keep their positions on Qwen. To leave out
    what is chosen already, the release takes 1 off its attention before it looks for registers; on Qwen that attention
    is a sum over queries, which may be so high that a token is chosen again, and then fewer than K stay.
    By the paper's text, neighbours lie on the grid (`buffers="grid"`). Where anchors and buffers come to more than K (α
    near 1), on which the release fails, the buffers of the weakest anchors go.
    """

    name: ClassVar[str] = "hiprune"
    citation: ClassVar[str] = "HiPrune (AAAI 2026)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention"})
    presets: ClassVar[tuple[str, ...]] = ("LLaVA: layers 8, 22 of 24", "Qwen: layers 15, 31 of 32")

    alpha: float = 0.1
    """α, the share of the budget for anchors and their buffers. Paper."""
    object_layer: int | None = None
    """Counted from 0 (the release counts this one from 1). None: the paper's, scaled with the depth of the tower."""
    deep_layer: int | None = None
    """Counted from 0, or from the end if negative. None: the paper's."""
    buffers: Buffers = "flat"
    """Neighbours by index, "flat", as in the release; or on the "grid", within the image, as in the paper's text."""
    exact: bool = False
    """True: exactly `keep` tokens stay, over all crops and on Qwen. Ours, for equal budgets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.unit_interval("alpha", self.alpha)
        checks.known("buffers", self.buffers, ("flat", "grid"))

    def positions_on(self, family: str) -> Positions:
        return "keep" if family.startswith("qwen") else "renumber"

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        qwen = family.startswith("qwen")
        layer, of = QWEN if qwen else LLAVA
        wanted = (
            max(0, int(layer * depth / of + 0.5) - 1) if self.object_layer is None else self.object_layer,
            max(-depth, -1 if qwen else -2) if self.deep_layer is None else self.deep_layer,
        )
        return tuple(counted(self.name, each, depth) for each in wanted)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        middle, deep = tower_layers(self.name, tokens, 2)
        picked = self.picked(tokens)
        order = torch.cat([part.order + block.start for part, block in zip(picked, tokens.blocks, strict=True)])
        indices = order.sort().values
        return Selection(
            indices,
            len(tokens),
            self.name,
            order=order,
            quotas=tokens.quotas(indices),
            scores=received(deep),
            notes=(f"tower layers {middle.layer} (object) and {deep.layer} (deep) of {deep.depth}",),
        )

    def picked(self, tokens: VisualTokens) -> list[Picked]:
        """What each crop keeps."""
        middle, deep = tower_layers(self.name, tokens, 2)
        at_middle, at_deep, off = received(middle), received(deep), torch.inf
        if deep.family.startswith("qwen") and not self.exact:
            at_deep, off = at_deep * len(tokens), 1.0
        return [
            self._block(at_middle[block], at_deep[block], grid, quota, off)
            for block, grid, quota in zip(tokens.blocks, tokens.grids, self._quotas(tokens), strict=True)
        ]

    def _quotas(self, tokens: VisualTokens) -> list[int]:
        count, crops = self.count(len(tokens)), len(tokens.grids)
        if self.exact or count < crops:
            return split_evenly(tokens.grids, count)
        return [min(count // crops, rows * columns) for rows, columns in tokens.grids]

    def _block(self, middle: Tensor, deep: Tensor, grid: Grid, quota: int, off: float) -> Picked:
        """off: what is taken off the deep layer's attention on tokens that are chosen already."""
        anchors = rank_descending(middle)[: round(quota * self.alpha / 5)]
        around = _flat_neighbours if self.buffers == "flat" else _grid_neighbours
        chosen = _once([*anchors.tolist(), *(cell for anchor in anchors.tolist() for cell in around(anchor, grid))])
        chosen = chosen[:quota].to(anchors)
        deep = deep.clone()
        deep[chosen] -= off
        return Picked(anchors, chosen[len(anchors) :], rank_descending(deep)[: quota - len(chosen)])


def _once(cells: list[int]) -> Tensor:
    """Each cell once, where it comes first."""
    return torch.tensor(list(dict.fromkeys(cells)), dtype=torch.long)


def _flat_neighbours(cell: int, grid: Grid) -> list[int]:
    """Those above, left, right and below by index alone, held within the grid."""
    rows, columns = grid
    return [min(max(cell + step, 0), rows * columns - 1) for step in (-columns, -1, 1, columns)]


def _grid_neighbours(cell: int, grid: Grid) -> list[int]:
    """Those above, left, right and below that lie in the grid."""
    rows, columns = grid
    row, column = divmod(cell, columns)
    around = [(row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)]
    return [r * columns + c for r, c in around if 0 <= r < rows and 0 <= c < columns]
