"""DivPrune: the tokens that differ most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from eadp.core import OrderedPicks, Selection, TextGuide, VisualTokens, max_min_by_quota, split_evenly
from eadp.methods.base import Newlines, register_method
from eadp.methods.before import BeforeMethod


@register_method
@dataclass(frozen=True)
class DivPrune(BeforeMethod):
    """Keep the T tokens that are farthest apart, whatever the question is.

    With d_ij = 1 − cos(f_i, f_j), the first token is the one whose nearest neighbour is farthest. Each next token is
    the one that is farthest from its nearest kept token.

    Paper: "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models", CVPR 2025.

    Release, the default: All crops of an image form one pool, in which newline tokens compete with patches. A share
    counts newlines too, and T tokens stay, newlines included. Frames are pruned one by one, as in EADP's repository.

    Departures: `scope="block"` also prunes crops one by one, as EADP's repository does; `scope="image"` pools frames.

    Attributes:
        scope: "image": one pool per image or clip. "block": each crop or frame has the same share of the budget.
            "released": images are one pool, frames are pruned one by one.
    """

    name: ClassVar[str] = "divprune"
    citation: ClassVar[str] = "DivPrune (CVPR 2025)"
    newlines: ClassVar[Newlines] = "chosen"

    scope: Literal["released", "image", "block"] = "released"

    def count_sent(self, patches: int, newlines: int = 0, has_layout: bool = True) -> int:
        return self.count_to_keep(patches if self._prunes_by_block(has_layout) else patches + newlines)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        picks, total = self.pick(tokens), len(tokens)
        is_patch = picks.indices < total
        order = picks.indices[is_patch]
        indices = order.sort().values
        return Selection(
            indices,
            total,
            self.name,
            order=order,
            gains=picks.gains[is_patch],
            quotas=tokens.quotas(indices),
            newlines=int((~is_patch).sum()),
        )

    def pick(self, tokens: VisualTokens) -> OrderedPicks:
        """Return the picks in order; indices from N on are newlines."""
        if self._prunes_by_block(tokens.layout is not None):
            quotas = split_evenly(tokens.grids, self.count_to_keep(len(tokens)))
            return max_min_by_quota(tokens.features, tokens.blocks, quotas)
        rows = tokens.features
        if tokens.newlines is not None:
            rows = torch.cat([rows, tokens.newlines.to(rows)])
        return max_min_by_quota(rows, [slice(0, len(rows))], [self.count_to_keep(len(rows))])

    def _prunes_by_block(self, has_layout: bool) -> bool:
        """Whether each block is pruned by itself. Newlines are in no block, so they are never picked then."""
        return self.scope == "block" or (self.scope == "released" and not has_layout)
