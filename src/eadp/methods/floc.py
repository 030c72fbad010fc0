"""FLoC: the tokens of a clip that best represent all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Selection, TextGuide, VisualTokens, facility_location_by_quota
from eadp.methods.base import Newlines, Positions, register_method
from eadp.methods.before import BeforeMethod


@register_method
@dataclass(frozen=True)
class FLoC(BeforeMethod):
    """Keep the tokens of a clip that best represent all of its tokens, whatever frame they are in.

    The kept set S maximizes Σ_v max_{s∈S} cos(v, s) over all tokens v of the clip, greedily.

    Paper: "FLoC: Facility Location-Based Efficient Visual Token Compression for Long Video Understanding", ICLR 2026.
    Claim of the authors: more accurate than other compressions on Video-MME and MLVU.

    Release: none. This is our reading of the abstract: exact facility location over the tokens that enter the language
    model, the whole clip at once. Blocks, layers and defaults of the authors are unknown, so we claim no parity.
    Kept tokens keep their positions on Qwen and are renumbered on LLaVA. A still image is a clip of one frame.
    """

    name: ClassVar[str] = "floc"
    citation: ClassVar[str] = "FLoC (ICLR 2026), our reading of its abstract"
    newlines: ClassVar[Newlines] = "all"

    def positions_for(self, family: str) -> Positions:
        return "keep" if family.startswith("qwen") else "renumber"

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        features, total = tokens.features, len(tokens)
        weights = torch.ones(total, device=features.device)
        found = facility_location_by_quota(features, weights, [slice(0, total)], [self.count_to_keep(total)])
        indices = found.indices.sort().values
        return Selection(
            indices,
            total,
            self.name,
            order=found.indices,
            gains=found.gains,
            coverage=found.coverage,
            bound=found.bound,
            quotas=tokens.quotas(indices),
        )
