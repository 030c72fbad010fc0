"""DivPrune: the tokens that differ most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from eadp.core import OrderedPicks, Selection, TextGuide, VisualTokens, checks, max_min_by_quota, split_evenly
from eadp.methods.base import Method, Newlines


@dataclass(frozen=True)
class DivPrune(Method):
    """Keep the T tokens that are farthest apart, whatever is asked.

    d_ij = 1 − cos(f_i, f_j). First the token whose nearest neighbour is farthest, then always the one that is farthest
    from its nearest kept token.

    Paper: "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models", CVPR 2025. It has no settings.
    As released: the crops of an image are one pool, in which newlines compete like patches; a share counts newlines
    too, and T tokens stay, newlines among them. Frames are pruned one by one, as in EADP's repository, which also does
    so with crops (scope="block").
    """

    name: ClassVar[str] = "divprune"
    citation: ClassVar[str] = "DivPrune (CVPR 2025)"
    newlines: ClassVar[Newlines] = "chosen"

    scope: Literal["released", "image", "block"] = "released"
    """One pool for each image, or each crop and frame by itself with the same share of the budget. released: images
    are one pool, frames are pruned one by one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.known("scope", self.scope, ("released", "image", "block"))

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        picks, total = self.picks(tokens), len(tokens)
        patches = picks.indices < total
        order = picks.indices[patches]
        indices = order.sort().values
        return Selection(
            indices,
            total,
            self.name,
            order=order,
            gains=picks.gains[patches],
            quotas=tokens.quotas(indices),
            newlines=int((~patches).sum()),
        )

    def sent(self, patches: int, newlines: int = 0) -> int:
        return self.count(patches if self.scope == "block" else patches + newlines)

    def picks(self, tokens: VisualTokens) -> OrderedPicks:
        """In turn; from N on they are newlines."""
        if self.scope == "block" or (self.scope == "released" and tokens.layout is None):
            quotas = split_evenly(tokens.grids, self.count(len(tokens)))
            return max_min_by_quota(tokens.features, tokens.blocks, quotas)
        rows = tokens.features
        if tokens.newlines is not None:
            rows = torch.cat([rows, tokens.newlines.to(rows)])
        return max_min_by_quota(rows, [slice(0, len(rows))], [self.count(len(rows))])
