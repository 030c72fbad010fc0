"""MMTok: tokens that cover the words of the question and the image."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core import OrderedPicks, Selection, TextGuide, VisualTokens, greedy_coverage, split_evenly
from eadp.core.similarity import highest_precision
from eadp.methods._attention import require_features
from eadp.methods._blank import ALIKE, are_alike, even_tokens
from eadp.methods.base import Need, Positions, register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.settings import Range

if TYPE_CHECKING:
    from typing_extensions import Self

ANSWER_REQUESTS = (
    "Answer the question using a single word or phrase.",
    "Answer with the option's letter from the given choices directly.",
)
"""What benchmarks append to a question, which says nothing about the image."""

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a an and answer are at be been being but by did do does for from had has have he how i if into is it onto or
        question she so the then they to upon was we were what when where which who why with you
        """,
    )
)

LLAVA_TEMPERATURE, QWEN_TEMPERATURE = 0.02, 0.01


@register_method
@dataclass(frozen=True)
class MMTok(BeforeMethod):
    """Keep the tokens that together cover both the words of the question and the image itself.

    For m words and N tokens, P = softmax over tokens of cos(word, projected token)/τ_t, divided by m, and Q = softmax
    of cos(token, token)/τ_v in the tower's output, divided by N. Each pick is the token j with the largest
    Σ_r max(0, C_rj − best_r) over the rows r of C = [P; αQ], where best_r is what the picks reach, 0 at first. Words
    are input embeddings of the language model, so no text encoder is needed.

    Paper: "MMTok: Multimodal Coverage Maximization for Efficient Inference of VLMs", ICLR 2026.

    Claim: LLaVA-NeXT-13B keeps 98.7 % of its result on POPE at a speed-up of 1.87, and 87.7 % with four tokens.


    Release, the default: On LLaVA, the words are the question without stop words and without the benchmarks' two
    requests for a short answer (the question as it is, if none are left); every crop keeps the same number of tokens;
    patches of LLaVA-1.5 that show only padding are covered but never picked. On Qwen, the words are the whole question
    after "Question: ", τ_t is 0.01, kept tokens keep their positions, and a share is rounded down. Other families are
    treated as LLaVA. Rows are normalised in the dtype of the model.

    Departures: `exact=True`. The greedy runs in float64. Padding is found in the pixels, by the mean colour with which
    LLaVA's processor pads. Without any word, the image alone is covered; if all tokens are alike, those on
    an even grid stay. If fewer tokens than `keep` are no padding,
    padding fills up.

    Attributes:
        alpha: α, the weight of the image against the words. Release: 0.5.
        text_temperature: τ_t. None: 0.01 on Qwen, 0.02 elsewhere (release).
        vision_temperature: τ_v. Release: 0.2.
        words: "keywords" or the whole "question". None: the question on Qwen, keywords elsewhere (release).
        exact: Round a share to the nearest count, for comparisons at equal budgets.
    """

    name: ClassVar[str] = "mmtok"
    citation: ClassVar[str] = "MMTok (ICLR 2026)"
    needs: ClassVar[frozenset[Need]] = frozenset({"word_embeddings", "tower_features", "padding"})
    presets: ClassVar[tuple[str, ...]] = ("LLaVA: keywords, τ 0.02", "Qwen: question, τ 0.01")

    alpha: Annotated[float, Range(0)] = 0.5
    text_temperature: Annotated[float, Range(0, open_low=True)] | None = None
    vision_temperature: Annotated[float, Range(0, open_low=True)] = 0.2
    words: Literal["keywords", "question"] | None = None
    exact: bool = False

    def with_exact_count(self) -> Self:
        return replace(self, exact=True)

    def for_family(self, family: str) -> Self:
        is_qwen = family.startswith("qwen")
        return replace(
            self,
            text_temperature=self.text_temperature or (QWEN_TEMPERATURE if is_qwen else LLAVA_TEMPERATURE),
            words=self.words or ("question" if is_qwen else "keywords"),
        )

    def positions_for(self, family: str) -> Positions:
        return "keep" if family.startswith("qwen") else "renumber"

    def count_to_keep(self, total: int) -> int:
        """Return how many of `total` tokens `keep` asks for; without `exact`, a share is rounded down."""
        if isinstance(self.keep, float) and not self.exact:
            return max(1, int(total * self.keep))
        return super().count_to_keep(total)

    def text_to_encode(self, question: str) -> str:
        if not question.strip():
            return ""
        if self.words == "question":
            return f"Question: {question}"
        for request in ANSWER_REQUESTS:
            question = question.replace(request, "")
        question = question.strip()
        kept = [word for word in re.findall(r"\w+", question) if word.lower() not in STOP_WORDS]
        return " ".join(kept) or question

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        if text is None or text.tokens is None:
            raise ValueError("mmtok needs the question: give a TextGuide with `tokens`, embeddings of its words")
        if tokens.aligned is None:
            raise ValueError("mmtok needs `aligned`: the visual tokens in the space of the words")
        words = text.tokens if isinstance(text.tokens, Tensor) else torch.cat(list(text.tokens))
        features = require_features(self.name, tokens)
        parts, notes = [], () if len(words) else ("the question has no words: the image alone is covered",)
        quotas = split_evenly(tokens.grids, self.count_to_keep(len(tokens)))
        for block, quota in zip(tokens.blocks, quotas, strict=True):
            if quota:
                padding = None if tokens.padding is None else tokens.padding[block]
                values = self.coverage_values(words, tokens.aligned[block], features[block])
                picks = greedy_coverage(values, quota, excluded=padding)
                parts.append(OrderedPicks(picks.indices + block.start, picks.gains))
        gains = torch.cat([part.gains for part in parts])
        order = torch.cat([part.indices for part in parts])
        # Not by the gains: the temperatures magnify rounding.
        has_padding = tokens.padding is not None and bool(tokens.padding.any())
        if not has_padding and all(are_alike(rows, tokens.blocks) for rows in (tokens.aligned, features)):
            order, notes = even_tokens(tokens, len(order)), (*notes, ALIKE)
        indices = order.sort().values
        return Selection(
            indices,
            len(tokens),
            self.name,
            order=order,
            gains=gains,
            quotas=tokens.quotas(indices),
            notes=notes,
        )

    def coverage_values(self, words: Tensor, projected: Tensor, tower: Tensor) -> Tensor:
        """Return Cᵀ, N×(m + N): the value of each token for each word and each token.

        Args:
            words: m×d.
            projected: N×d, the tokens in the space of the words.
            tower: N×w, the tokens in the tower's output.
        """
        precision = highest_precision(projected.device)
        unit_words, unit_tokens, unit_tower = (
            F.normalize(rows.detach(), dim=1).to(precision) for rows in (words.to(projected), projected, tower)
        )
        temperature = self.text_temperature or LLAVA_TEMPERATURE
        by_word = torch.softmax(unit_words @ unit_tokens.T / temperature, dim=1) / max(1, len(words))
        by_token = torch.softmax(unit_tower @ unit_tower.T / self.vision_temperature, dim=1) / len(tower)
        return torch.cat([by_word, self.alpha * by_token]).T.contiguous()
