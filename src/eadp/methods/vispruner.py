"""VisPruner: the tokens that CLS attends to, and a diverse remainder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, rank_descending, split_evenly, token_cosine
from eadp.methods._attention import cls_attention, label_selection, require_attention, require_features, resolve_layer
from eadp.methods.base import Need, register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.settings import Range

DROPPED_PER_ROUND = 8


@dataclass(frozen=True)
class ImportantAndDiverse:
    """The tokens of one crop that stay, counted from the crop's start.

    Attributes:
        important: Highest attention first.
        diverse: The others, in the order in which the last round left them.
    """

    important: Tensor
    diverse: Tensor


@register_method
@dataclass(frozen=True)
class VisPruner(BeforeMethod):
    """Keep the tokens with the highest CLS attention, and of the others those that are least alike.

    Important are the ⌊T·ratio⌋ tokens with the highest CLS attention at layer −2 of the tower. The others, by falling
    attention, are dealt alternately to two groups A and B. The 8 tokens of A most similar to a token of B are dropped
    (cosine of the tower's output), what is left of A is put before B, and so on, until T − ⌊T·ratio⌋ are left.

    Paper: "Beyond Text-Visual Attention: Exploiting Visual Cues for Effective Token Pruning in VLMs", ICCV 2025.

    Claim: On LLaVA-1.5-7B, FLOPs fall by up to 91 % and latency by up to 75 %.


    Release, the default: as described above. Every crop keeps the same number of tokens.

    Departures: Where fewer than 8 tokens have to go, or A has fewer, only these are dropped; the release fails there if
    rounds remain. Where the tower has no CLS, attention received replaces that of CLS.

    Attributes:
        ratio: The share of important tokens. Release: 0.5.
        layer: The layer of the tower, counted from the end. Release: −2.
    """

    name: ClassVar[str] = "vispruner"
    citation: ClassVar[str] = "VisPruner (ICCV 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention", "tower_features"})
    uses_cls_attention: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = ("ratio: important against diverse",)

    ratio: Annotated[float, Range(0, 1)] = 0.5
    layer: int = -2

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (resolve_layer(self.name, self.layer, depth),)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = require_attention(self.name, tokens, 1)
        order = torch.cat(
            [
                torch.cat([part.important, part.diverse]) + block.start
                for part, block in zip(self.split_tokens(tokens), tokens.blocks, strict=True)
            ]
        )
        indices = order.sort().values
        return Selection(
            indices,
            len(tokens),
            label_selection(self.name, layer),
            order=order,
            quotas=tokens.quotas(indices),
            scores=cls_attention(layer),
            notes=(f"attention of tower layer {layer.layer} of {layer.depth}",),
        )

    def split_tokens(self, tokens: VisualTokens) -> list[ImportantAndDiverse]:
        """Return the tokens that each crop keeps."""
        (layer,) = require_attention(self.name, tokens, 1)
        features, scores = require_features(self.name, tokens), cls_attention(layer)
        quotas = split_evenly(tokens.grids, self.count_to_keep(len(tokens)))
        return [
            self._split_block(scores[block], features[block], quota)
            for block, quota in zip(tokens.blocks, quotas, strict=True)
        ]

    def _split_block(self, scores: Tensor, features: Tensor, quota: int) -> ImportantAndDiverse:
        ranked, count = rank_descending(scores), int(quota * self.ratio)
        important, rest = ranked[:count], ranked[count:]
        if quota == count:
            return ImportantAndDiverse(important, rest[:0])
        cosine = token_cosine(features)
        while (excess := len(rest) - (quota - count)) > 0:
            first, second = rest[0::2], rest[1::2]
            # One token alone has nothing to resemble: it is the one that goes.
            nearest = cosine[first][:, second].amax(1) if len(second) else cosine.new_zeros(len(first))
            dropped = min(DROPPED_PER_ROUND, excess, len(first))
            rest = torch.cat([first[rank_descending(nearest)[dropped:]], second])
        return ImportantAndDiverse(important, rest)
