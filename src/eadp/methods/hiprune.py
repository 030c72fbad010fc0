"""HiPrune: tokens attended to in the tower's middle layers, their neighbours, and tokens attended to in deep layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, rank_descending, split_evenly
from eadp.core.types import Grid
from eadp.methods._attention import received_attention, require_attention, resolve_layer
from eadp.methods.base import Need, Positions, register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.settings import Range

if TYPE_CHECKING:
    from typing_extensions import Self

LLAVA, QWEN = (9, 24), (16, 32)
"""The object layer, counted from 1, and the tower's depth, for LLaVA's CLIP and for Qwen2.5-VL."""

Buffers = Literal["flat", "grid"]


@dataclass(frozen=True)
class TokenGroups:
    """The tokens of one crop that stay, counted from the crop's start.

    Attributes:
        anchors: Highest attention at the object layer first.
        buffers: Neighbours of the anchors, without repeats.
        registers: Highest attention at the deep layer first; on Qwen they may repeat tokens of the other groups.
    """

    anchors: Tensor
    buffers: Tensor
    registers: Tensor

    @property
    def order(self) -> Tensor:
        """Anchors, buffers and registers, each token once."""
        return _unique([*self.anchors.tolist(), *self.buffers.tolist(), *self.registers.tolist()]).to(self.anchors)


@register_method
@dataclass(frozen=True)
class HiPrune(BeforeMethod):
    """Keep anchors, their neighbours, and registers, by the attention that tokens receive in two layers of the tower.

    Attention received is averaged over heads and queries. Anchors are the round(αK/5) highest tokens at the object
    layer (halves are rounded to even). Buffers are the tokens at index ± 1 and ± width of each anchor, clamped to
    0 … N − 1; at the end of a row they lie in the next one. Registers are the highest tokens at the deep layer, until
    there are K tokens.

    Paper: "HiPrune: Training-Free Visual Token Pruning via Hierarchical Attention in Vision-Language Models", AAAI
    2026.

    Release, the default: The object layer is the 9th of 24 on LLaVA and the 16th of 32 on Qwen. The deep layer is the
    last but one on LLaVA and the last on Qwen. Each crop or frame keeps ⌊keep/crops⌋ tokens. Kept tokens are renumbered
    on LLaVA and keep their positions on Qwen. To exclude tokens that are already selected, the release subtracts 1 from
    their attention before it looks for registers. On Qwen that attention is a sum over queries, which can be so high
    that a token is selected again; then fewer than K tokens stay.

    Departures: `buffers="grid"` and `exact=True`. Towers of other depths scale the object layer; the notes name the
    layers used. If anchors and buffers are more than K (α near 1), where the release fails, the buffers of the weakest
    anchors are dropped.

    Attributes:
        alpha: α, the share of the budget for anchors and their buffers. Paper: 0.1.
        object_layer: Counted from 0 (the release counts from 1). None: the paper's layer, scaled with the depth of the
            tower.
        deep_layer: Counted from 0, or from the end if negative. None: the paper's layer.
        buffers: "flat": neighbours by index (release). "grid": neighbours on the grid, within the image (paper).
        exact: Keep exactly `keep` tokens over all crops, on Qwen too, for comparisons at equal budgets.
    """

    name: ClassVar[str] = "hiprune"
    citation: ClassVar[str] = "HiPrune (AAAI 2026)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention"})
    presets: ClassVar[tuple[str, ...]] = ("LLaVA: layers 8, 22 of 24", "Qwen: layers 15, 31 of 32")

    alpha: Annotated[float, Range(0, 1)] = 0.1
    object_layer: int | None = None
    deep_layer: int | None = None
    buffers: Buffers = "flat"
    exact: bool = False

    def with_exact_count(self) -> Self:
        return replace(self, exact=True)

    def positions_for(self, family: str) -> Positions:
        return "keep" if family.startswith("qwen") else "renumber"

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        is_qwen = family.startswith("qwen")
        number, of_depth = QWEN if is_qwen else LLAVA
        layers = (
            max(0, int(number * depth / of_depth + 0.5) - 1) if self.object_layer is None else self.object_layer,
            max(-depth, -1 if is_qwen else -2) if self.deep_layer is None else self.deep_layer,
        )
        return tuple(resolve_layer(self.name, layer, depth) for layer in layers)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        middle, deep = require_attention(self.name, tokens, 2)
        groups = self.group_tokens(tokens)
        order = torch.cat([part.order + block.start for part, block in zip(groups, tokens.blocks, strict=True)])
        indices = order.sort().values
        return Selection(
            indices,
            len(tokens),
            self.name,
            order=order,
            quotas=tokens.quotas(indices),
            scores=received_attention(deep),
            notes=(f"tower layers {middle.layer} (object) and {deep.layer} (deep) of {deep.depth}",),
        )

    def group_tokens(self, tokens: VisualTokens) -> list[TokenGroups]:
        """Return the tokens that each crop keeps."""
        middle, deep = require_attention(self.name, tokens, 2)
        middle_attention, deep_attention, penalty = received_attention(middle), received_attention(deep), torch.inf
        if deep.family.startswith("qwen") and not self.exact:
            deep_attention, penalty = deep_attention * len(tokens), 1.0
        return [
            self._group_block(middle_attention[block], deep_attention[block], grid, quota, penalty)
            for block, grid, quota in zip(tokens.blocks, tokens.grids, self._quotas(tokens), strict=True)
        ]

    def _quotas(self, tokens: VisualTokens) -> list[int]:
        count, crops = self.count_to_keep(len(tokens)), len(tokens.grids)
        if self.exact or count < crops:
            return split_evenly(tokens.grids, count)
        return [min(count // crops, rows * columns) for rows, columns in tokens.grids]

    def _group_block(self, middle: Tensor, deep: Tensor, grid: Grid, quota: int, penalty: float) -> TokenGroups:
        """Group the tokens of one block. penalty: subtracted from the deep attention of tokens already selected."""
        anchors = rank_descending(middle)[: round(quota * self.alpha / 5)]
        neighbours = _flat_neighbours if self.buffers == "flat" else _grid_neighbours
        buffers = [cell for anchor in anchors.tolist() for cell in neighbours(anchor, grid)]
        selected = _unique([*anchors.tolist(), *buffers])[:quota].to(anchors)
        deep = deep.clone()
        deep[selected] -= penalty
        return TokenGroups(anchors, selected[len(anchors) :], rank_descending(deep)[: quota - len(selected)])


def _unique(cells: list[int]) -> Tensor:
    """Return each cell once, in order of first occurrence."""
    return torch.tensor(list(dict.fromkeys(cells)), dtype=torch.long)


def _flat_neighbours(cell: int, grid: Grid) -> list[int]:
    """Return the cells above, left, right and below by index alone, clamped to the grid."""
    rows, columns = grid
    return [min(max(cell + step, 0), rows * columns - 1) for step in (-columns, -1, 1, columns)]


def _grid_neighbours(cell: int, grid: Grid) -> list[int]:
    """Return the cells above, left, right and below that lie in the grid."""
    rows, columns = grid
    row, column = divmod(cell, columns)
    around = [(row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)]
    return [r * columns + c for r, c in around if 0 <= r < rows and 0 <= c < columns]
