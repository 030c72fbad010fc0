"""TRIM: the tokens most like the question, and one for all the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Selection, TextGuide, VisualTokens, outliers, ranked
from eadp.core.merging import room_after, unchanged
from eadp.methods.base import Method, Need
from eadp.methods.pooled import pooled_similarity


@dataclass(frozen=True)
class TRIM(Method):
    """Keep the tokens that the question scores highest, in their order, and append the mean of all the others.

    s = softmax_j(sign · ⟨v_j, pooled⟩) over all the tokens of the image, crops or frames together.

    keep=T is T tokens for the language model, as in every method here: T − 1 of the image, and the mean. Without keep
    the image decides: every score above Q3 + 1.5·IQR stays (at least one token), and the mean.

    Paper: "Less is More: A Simple yet Effective Token Reduction Method for Efficient Multi-modal LLMs", COLING 2025.
    The mean stands in the last slot of the image that stays; where the image's last tokens are all kept, they move up
    by one slot to make room. Deviations: the paper's T does not count the mean; the sign is the guide's (−1 on CLIP,
    as in the paper).
    """

    name: ClassVar[str] = "trim"
    citation: ClassVar[str] = "TRIM (COLING 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    merges: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("without keep: outliers",)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        total = len(tokens)
        scores = torch.softmax(pooled_similarity(self.name, tokens, text, cosine=False), dim=0)
        standing_out = min(total - 1, max(1, int(outliers(scores).sum())))
        count = standing_out if self.keep is None else self.count(total) - 1
        kept = ranked(scores)[:count].sort().values
        indices = room_after(kept, total)
        others = torch.ones_like(scores)
        others[kept] = 0
        merge = torch.cat([unchanged(kept, total), (others / others.sum())[None]])
        return Selection(indices, total, self.name, quotas=tokens.quotas(indices), scores=scores, merge=merge)
