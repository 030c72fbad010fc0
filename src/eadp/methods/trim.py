"""TRIM: the tokens most similar to the question, and one for all the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from eadp.core import Selection, TextGuide, TextLayout, VisualTokens, outliers, rank_descending
from eadp.core.merging import add_position_after, identity_weights
from eadp.methods._blank import even_tokens
from eadp.methods._merging import choose_merge_space
from eadp.methods._pooled_text import pooled_similarity
from eadp.methods.base import Need, register_method
from eadp.methods.before import BeforeMethod

if TYPE_CHECKING:
    from typing_extensions import Self


@register_method
@dataclass(frozen=True)
class TRIM(BeforeMethod):
    """Keep the tokens that the question scores highest, in order of position, and append the mean of all the others.

    Scores are s = softmax_j(sign · ⟨v_j, pooled⟩) without normalisation, over all tokens of the image, crops or frames
    together. The mean is taken before the projector, which then projects it.

    A share r keeps ⌊N·r⌋ tokens of the image, a count K keeps K. The mean is an additional token. Without `keep`, r is
    the share of scores above Q3 + 1.5·IQR. If all tokens of an image stay, no mean is appended.

    Paper: "Less is More: A Simple yet Effective Token Reduction Method for Efficient Multi-modal LLMs", COLING 2025.

    Release, the default: A question longer than the text encoder accepts is truncated. The sign is that of the guide
    (−1 for CLIP).

    Departures: `exact=True`. Where the projector does not accept single rows of the tower, the mean is taken after it,
    and the notes say so. If the question is empty or does not tell the tokens apart, none is an outlier, and `keep`
    tokens stay on an even grid; the notes say so too.

    Attributes:
        exact: `keep` counts everything that the language model receives, the mean included, for comparisons at equal
            budgets.
    """

    name: ClassVar[str] = "trim"
    citation: ClassVar[str] = "TRIM (COLING 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"text", "tower_rows"})
    merges: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("without keep: outliers",)

    exact: bool = False

    @property
    def text_layout(self) -> TextLayout:
        return "truncated"

    def with_exact_count(self) -> Self:
        return replace(self, exact=True)

    def count_to_keep(self, total: int) -> int:
        """Return how many of `total` tokens `keep` asks for; without `exact`, a share is rounded down."""
        if isinstance(self.keep, float) and not self.exact:
            return int(total * self.keep)
        return super().count_to_keep(total)

    def count_sent(self, patches: int, newlines: int = 0, has_layout: bool = True) -> int:
        count = self.count_to_keep(patches)
        return count if self.exact or count == patches else count + 1

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        total = len(tokens)
        found = pooled_similarity(self.name, tokens, text, cosine=False)
        scores = torch.softmax(found.values, dim=0)
        count = self._count_patches(total, 0 if found.is_constant else int(outliers(scores).sum()))
        if count == total:
            return Selection(torch.arange(total), total, self.name, quotas=tokens.quotas(torch.arange(total)))
        kept = tokens.in_sequence(even_tokens(tokens, count) if found.is_constant else rank_descending(scores)[:count])
        indices = add_position_after(kept, total)
        others = torch.ones_like(scores)
        others[kept] = 0
        space, notes = choose_merge_space(tokens)
        return Selection(
            indices,
            total,
            self.name,
            quotas=tokens.quotas(indices),
            scores=scores,
            merge=torch.cat([identity_weights(kept, total), (others / others.sum())[None]]),
            merge_space=space,
            rows=torch.cat([kept, kept.new_tensor([-1])]),
            notes=(*found.notes("those on an even grid stay" if count else "only their mean stays"), *notes),
        )

    def _count_patches(self, total: int, outlying: int) -> int:
        """Return how many tokens of the image stay, without the mean. outlying: how many scores are outliers."""
        if self.keep is None:
            # The release turns the count into a share, and rounds the product down.
            return int(total * (outlying / total))
        count = self.count_to_keep(total)
        return count - 1 if self.exact and count < total else count
