"""TRIM: the tokens most like the question, and one for all the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Selection, TextGuide, TextLayout, VisualTokens, outliers, rank_descending
from eadp.core.merging import add_position_after, identity_weights
from eadp.methods.base import Method, Need
from eadp.methods.merged import merging_space
from eadp.methods.pooled import pooled_similarity


@dataclass(frozen=True)
class TRIM(Method):
    """Keep the tokens that the question scores highest, by position, and append the mean of all the others.

    s = softmax_j(sign · ⟨v_j, pooled⟩), nothing normalised, over all the tokens of the image, crops or frames together.
    The mean is made before the model's projector, which takes the result.

    keep as a share r keeps ⌊N·r⌋ tokens of the image, as a count K keeps K; the mean comes on top, so that the language
    model gets one more than that. Without keep the image decides: r is the share of scores above Q3 + 1.5·IQR. An image
    of which all tokens stay has no mean.

    Paper: "Less is More: A Simple yet Effective Token Reduction Method for Efficient Multi-modal LLMs", COLING 2025.
    The default is the authors' release: a question longer than the text encoder takes is cut off, and the sign is the
    guide's (−1 on CLIP). What the release does not cover is ours: where the projector takes no single row of the tower,
    the mean is taken behind it, as the notes say.
    """

    name: ClassVar[str] = "trim"
    citation: ClassVar[str] = "TRIM (COLING 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"text", "tower_rows"})
    merges: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("without keep: outliers",)

    exact: bool = False
    """True: `keep` counts all that the language model gets, the mean too. Ours, for equal budgets."""

    @property
    def text_layout(self) -> TextLayout:
        return "truncated"

    def count(self, total: int) -> int:
        """A share is rounded down; with `exact`, as everywhere."""
        if isinstance(self.keep, float) and not self.exact:
            return int(total * self.keep)
        return super().count(total)

    def sent(self, patches: int, newlines: int = 0) -> int:
        count = self.count(patches)
        return count if self.exact or count == patches else count + 1

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        total = len(tokens)
        scores = torch.softmax(pooled_similarity(self.name, tokens, text, cosine=False), dim=0)
        count = self._patches(total, int(outliers(scores).sum()))
        if count == total:
            return Selection(torch.arange(total), total, self.name, quotas=tokens.quotas(torch.arange(total)))
        kept = tokens.in_sequence(rank_descending(scores)[:count])
        indices = add_position_after(kept, total)
        others = torch.ones_like(scores)
        others[kept] = 0
        space, notes = merging_space(tokens)
        return Selection(
            indices,
            total,
            self.name,
            quotas=tokens.quotas(indices),
            scores=scores,
            merge=torch.cat([identity_weights(kept, total), (others / others.sum())[None]]),
            merge_space=space,
            rows=torch.cat([kept, kept.new_tensor([-1])]),
            notes=notes,
        )

    def _patches(self, total: int, standing_out: int) -> int:
        """How many tokens of the image stay."""
        if self.keep is None:
            # The release goes by the share, and rounds the count down again.
            return int(total * (standing_out / total))
        count = self.count(total)
        return count - 1 if self.exact and count < total else count
