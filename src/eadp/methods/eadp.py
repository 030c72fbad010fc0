"""EADP, the method of this library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from eadp.core import (
    AGGREGATIONS,
    DEFAULT_MATRIX_LIMIT,
    DISPERSIONS,
    Aggregation,
    FacilityLocationResult,
    Grid,
    OrderedPicks,
    Relevance,
    Scoring,
    Selection,
    TextGuide,
    TextLayout,
    VisualTokens,
    allocate,
    checks,
    dpp_by_quota,
    facility_location_by_coverage,
    facility_location_by_quota,
    facility_location_over_time,
    polarize,
    relevance,
    relevance_of_images,
    smooth_and_polarize,
    smooth_maps,
)
from eadp.core.backends import BACKENDS, DEVICE_BACKENDS, LARGEST_AT_ONCE, choose_backend
from eadp.core.block_layout import BlockLayout
from eadp.core.image_quotas import allocate_images
from eadp.core.quotas import ALLOCATION_RULES, ROUNDINGS
from eadp.core.ranking import heaviest_by_quota
from eadp.core.relevance import constant_note
from eadp.core.scoring import NORMALISED_OVER
from eadp.core.smoothing import check_smoothing, guess_grids
from eadp.core.word_weights import WORD_COUNTS
from eadp.methods._blank import ALIKE, even_tokens, one_represents_all, spread_equals
from eadp.methods._eadp_by_coverage import select_by_coverage
from eadp.methods._eadp_on_device import ScoredImages, require_text, select_by_quota
from eadp.methods._eadp_presets import PAPER, PUBLISHED
from eadp.methods._on_device import concatenate, is_on_device
from eadp.methods.base import Need, register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.settings import OneOf, Range

if TYPE_CHECKING:
    from typing_extensions import Self

Temperature = Annotated[float, Range(1e-6, 1e6)]
Scope = Literal["block", "image", "pool"]
Selector = Literal["facility_location", "dpp", "topk"]


@register_method
@dataclass(frozen=True)
class EADP(BeforeMethod):
    """Score tokens by the words that point at something, smooth and sharpen the map, keep tokens that cover it best.

    Words whose similarity is spread over the whole image (high entropy) are ignored; the others score the tokens.
    Facility location then selects the tokens that best represent the weighted image.

    Paper: "Combating Textual Noise and Redundancy: Entropy-Aware Dense Visual Token Pruning", ECCV 2026.

    The defaults are the paper's, except `rounding`: quotas of several blocks add up to the budget. The paper gives no
    value for β, only β > 1; our 2 is where the best averages of its ablation begin. `EADP.paper` is the paper's text,
    `EADP.published` the release of its authors; docs/methods/parity.md lists where they differ. Positions are
    renumbered and newlines dropped, as in the release on every model. `time` goes beyond the paper, which prunes a clip
    frame by frame.

    Attributes:
        coverage: Instead of a count: keep as few tokens as reach this coverage of the weighted image, at most `keep`. 0
            is what the best single token represents, 1 is everything. Blocks then share the budget by themselves: the
            next token comes from the block where it gains most.
        time: On a clip, the number of frames before and after its own that a token also represents; 0 covers each frame
            by itself (paper, release). One budget is then spent over the whole clip: frames that repeat others get few
            tokens, and `allocation`, `rounding` and `backend` have no effect. See `core.facility_location_over_time`.
        time_decay: With `time`, how much of the similarity is lost per frame of distance.
        per_frame: With `time`, the least number of tokens that stay of each frame.
        mu: μ, the weight of the pooled text against the single words. Paper: eq. 9 and the best of its ablation. The
            release's scripts set 0.5, but 1.0 for POPE and 0.0 for VizWiz.
        q: The share of words that are kept, lowest entropy first. Paper: eq. 6; 0.3 was better by 0.1 in its ablation.
            Release: 0.2, on video 0.5.
        tau: τ, the temperature of a word's distribution over the image. Paper: eq. 4.
        gamma: γ, the temperature of the weights over words. Paper: eq. 7. The release adds 1e-6.
        dispersion: How the spread of a word is measured: "entropy" (paper, eq. 5), "central_mass" or "variance" (its
            ablation; not in the release).
        aggregation: How kept words are weighted: "neg_entropy" (paper, eq. 7), "inverse_entropy" (release on video),
            "inverse_entropy_flat", "topk", "gated", "gated_softmax" (ablation of the paper).
        theta: θ of the gated aggregations. Release.
        top_words: How many words the aggregation "topk" averages per token. Release.
        words: What counts as a word: the tokens of the instruction ("words", paper), every slot of the text encoder
            ("slots", release), or the slots of the first segment only ("truncated").
        word_count: How the share q is counted: "quantile", ⌈q·M⌉ and ties (paper), or "floor", ⌊q·M⌋ (release).
        scope: The tokens over which a word's distribution is taken. "block": those of each crop or frame (Algorithm 1
            has a batch dimension; release). "image": those of all crops; maps are still smoothed and covered one by
            one. "pool": there are no blocks, and the map is smoothed only if it is one rectangle (release on Qwen).
        normalised_over: The min-max is taken over the "image", all blocks together (Algorithm 1; release on LLaVA), or
            over each "block" (release on video).
        lift: Added to numerator and denominator of the min-max, so that the least relevant token still counts. Release:
            1e-6.
        smoothing: The side of the Gaussian filter; 1 turns it off. Paper: eq. 11; 5 and 7 in its ablation.
        sigma: σ of the Gaussian. Paper: supplement.
        smoothing_grid: The grid that is smoothed: each block's "own", or the one that the release on LLaVA "guessed"
            from the number of tokens.
        beta: β, the power that sharpens the map. Paper: eq. 12, β > 1; 0, 0.5, 2, 5 and 10 in its ablation. Release: 1
            on LLaVA, 2 on Qwen and video.
        allocation: How crops or frames share the budget: "importance" (paper, supplement; release on LLaVA-NeXT),
            "global_guided" (its ablation), "uniform" (release on video).
        rounding: Quotas add up to the budget ("exact"), or are rounded as in the "paper" or as "released": see
            `core.allocate`.
        similarity: The rows by which tokens represent each other: the projected "features", or the rows of the tower
            ("aligned", release on video).
        selection: How tokens are selected: "facility_location" (the method), "dpp" or "topk" (ablation of the paper).
        deepstack: Whether the DeepStack features of Qwen3-VL stay with the kept tokens. The release drops them.
        backend: The solver: "auto", "numba", "triton", "torch" or "rows".
        matrix_limit: The largest similarity matrix of a block in bytes; beyond it, rows are computed on the fly.
    """

    name: ClassVar[str] = "eadp"
    citation: ClassVar[str] = "Entropy-Aware Dense Visual Token Pruning (ECCV 2026)"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    presets: ClassVar[tuple[str, ...]] = ("paper: its text", "published: its authors' release, for each model")

    coverage: Annotated[float, Range(0, 1, open_low=True)] | None = field(default=None, kw_only=True)
    time: Annotated[int, Range(0, 1000)] = field(default=0, kw_only=True)
    time_decay: Annotated[float, Range(0, 1, open_high=True)] = field(default=0.0, kw_only=True)
    per_frame: Annotated[int, Range(0)] = field(default=0, kw_only=True)
    mu: Annotated[float, Range(0, 1)] = 0.5
    q: Annotated[float, Range(0, 1, open_low=True)] = 0.5
    tau: Temperature = 0.01
    gamma: Temperature = 0.01
    dispersion: Annotated[str, OneOf(DISPERSIONS)] = "entropy"
    aggregation: Annotated[str, OneOf(AGGREGATIONS)] = "neg_entropy"
    theta: Annotated[float, Range(0, 1000, open_low=True)] = 1.0
    top_words: Annotated[int, Range(1)] = 5
    words: TextLayout = "words"
    word_count: Annotated[str, OneOf(WORD_COUNTS)] = "quantile"
    scope: Scope = "block"
    normalised_over: Annotated[str, OneOf(NORMALISED_OVER)] = "image"
    lift: Annotated[float, Range(0, 1, open_high=True)] = 0.0
    smoothing: Annotated[int, Range(1, 255)] = 3
    sigma: Annotated[float, Range(0, 1000, open_low=True)] = 1.0
    smoothing_grid: Literal["own", "guessed"] = "own"
    beta: Annotated[float, Range(0, 1000)] = 2.0
    allocation: Annotated[str, OneOf(ALLOCATION_RULES)] = "importance"
    rounding: Annotated[str, OneOf(ROUNDINGS)] = "exact"
    similarity: Literal["features", "aligned"] = "features"
    selection: Selector = "facility_location"
    deepstack: bool = True
    backend: Annotated[str, OneOf(BACKENDS)] = "auto"
    matrix_limit: Annotated[int, Range(0, 1 << 50)] = DEFAULT_MATRIX_LIMIT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is None and self.coverage is None:
            raise ValueError(
                "EADP needs keep= (a count such as 128, or a share such as 0.25) or coverage= (such as 0.9)"
            )
        if self.coverage is not None and self.selection != "facility_location":
            raise ValueError(f"only facility_location reaches a coverage=; selection={self.selection!r} needs keep=")
        if self.time and self.selection != "facility_location":
            raise ValueError(f"time= needs selection='facility_location', got {self.selection!r}")
        if (self.per_frame or self.time_decay) and not self.time:
            name = "per_frame" if self.per_frame else "time_decay"
            raise ValueError(f"{name}= needs time=, the number of frames that a token represents, such as time=2")
        _ = self.scoring
        check_smoothing(self.smoothing, self.sigma)

    @classmethod
    def preset_settings(cls, name: str, family: str) -> dict[str, Any]:
        checks.known("preset", name, ("paper", "published"))
        if name == "paper":
            return PAPER
        checks.known("family with a published EADP", family, PUBLISHED)
        return PUBLISHED[family]

    @classmethod
    def paper(cls, keep: int | float, family: str = "llava", **settings: Any) -> EADP:
        """Return EADP as the paper describes it, the same for every family: the defaults, with quotas rounded down.

        Args:
            keep: The budget.
            family: The `model_type` of the model; without effect here.
            settings: Settings that win over those of the paper.
        """
        return cls.from_dict({"preset": "paper", "keep": keep, **settings}, family=family)

    @classmethod
    def published(cls, keep: int | float, family: str, **settings: Any) -> EADP:
        """Return EADP as the authors' released code runs it for this family of models.

        Args:
            keep: The budget.
            family: The `model_type` of the model.
            settings: Settings that win over those of the release.
        """
        return cls.from_dict({"preset": "published", "keep": keep, **settings}, family=family)

    def with_exact_count(self) -> Self:
        return replace(self, rounding="exact")

    @property
    def text_layout(self) -> TextLayout:
        return self.words

    @property
    def keeps_deepstack(self) -> bool:
        return self.deepstack

    @property
    def may_keep_fewer(self) -> bool:
        return self.coverage is not None

    @cached_property
    def scoring(self) -> Scoring:
        """The settings of the relevance score."""
        return Scoring(
            mu=self.mu,
            q=self.q,
            tau=self.tau,
            dispersion=self.dispersion,
            word_count=self.word_count,
            aggregation=Aggregation(self.aggregation, self.gamma, self.theta, self.top_words),
            normalised_over=self.normalised_over,
            lift=self.lift,
        )

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        if self._stays_on_device([tokens]):
            (selection,) = self._select_on_device([tokens], [text])
            return selection
        limit = None if self.keep is None else self.count_to_keep(len(tokens))
        relevant = self.relevance(tokens, text)
        weights = cast(Tensor, relevant.polarized)
        rows = self._rows(tokens)
        blocks = self._blocks(tokens)
        picks: OrderedPicks | FacilityLocationResult
        covered: FacilityLocationResult | None = None
        solver: dict[str, Any] = {"backend": self.backend, "matrix_limit": self.matrix_limit}
        if self.time and tokens.is_clip:
            picks = covered = facility_location_over_time(
                rows,
                weights,
                len(tokens.grids),
                self.time,
                limit,
                self.coverage,
                decay=self.time_decay,
                per_frame=self.per_frame,
                matrix_limit=self.matrix_limit,
            )
        elif self.coverage is not None:
            picks = covered = facility_location_by_coverage(rows, weights, blocks, self.coverage, limit, **solver)
        else:
            quotas = self._quotas(tokens, weights, cast(int, limit))
            if self.selection == "facility_location":
                picks = covered = facility_location_by_quota(rows, weights, blocks, quotas, **solver)
            else:
                picks = _SELECTORS[self.selection](rows, weights, blocks, quotas)
        notes = relevant.notes
        if relevant.is_constant is not None and bool(relevant.is_constant):
            if self.selection == "topk":
                picks = OrderedPicks(
                    spread_equals(tokens, relevant.score, picks.indices, self.scope == "pool"), picks.gains
                )
            elif one_represents_all(picks.gains, len(blocks)):
                picks, notes = OrderedPicks(even_tokens(tokens, len(picks.indices)), picks.gains), (*notes, ALIKE)
        indices = picks.indices.sort().values
        return Selection(
            indices=indices,
            total=len(tokens),
            method=self.name,
            order=picks.indices,
            gains=picks.gains,
            coverage=None if covered is None else covered.coverage,
            bound=None if covered is None else covered.bound,
            quotas=tokens.quotas(indices),
            scores=weights,
            relevance=relevant,
            notes=notes,
        )

    def select_batch(self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Selection]:
        if self._stays_on_device(batch):
            return self._select_on_device(batch, texts)
        return super().select_batch(batch, texts)

    def _stays_on_device(self, batch: Sequence[VisualTokens]) -> bool:
        """Return whether all images are solved at once, and either nothing is read back or all of it in one copy."""
        if not is_on_device(batch):
            return False
        adds_up = self.rounding == "exact" or self.scope == "pool" or self.allocation == "uniform"
        largest = max(block.stop - block.start for tokens in batch for block in self._blocks(tokens))
        size = torch.promote_types(batch[0].features.dtype, torch.float32).itemsize
        blocks = sum(len(self._blocks(tokens)) for tokens in batch)
        backend = choose_backend(self.backend, batch[0].features.device)
        # A large block takes a launch per pick, and how many picks a coverage takes is not known before.
        stops = self.coverage is not None
        return (
            self.selection == "facility_location"
            and not (stops and (backend != "triton" or largest > LARGEST_AT_ONCE))
            and (stops or adds_up or all(len(tokens.grids) == 1 for tokens in batch))
            and not (self.time and any(tokens.is_clip for tokens in batch))
            and backend in DEVICE_BACKENDS
            and blocks * largest**2 * size <= self.matrix_limit
        )

    def _rows(self, tokens: VisualTokens) -> Tensor:
        """Return the rows by which tokens represent each other."""
        return tokens.features if self.similarity == "features" else cast(Tensor, tokens.aligned)

    def _blocks(self, tokens: VisualTokens) -> list[slice]:
        """Return the blocks that are covered one by one."""
        return [slice(0, len(tokens))] if self.scope == "pool" else tokens.blocks

    def _select_on_device(self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Selection]:
        """Select from all images at once: without waiting for the device, or with one wait for a coverage."""
        images, grids = self._score_on_device(batch, texts)
        if self.coverage is not None:
            limits = [None if self.keep is None else self.count_to_keep(len(tokens)) for tokens in batch]
            return select_by_coverage(self.name, images, self.coverage, limits)
        budgets = [self.count_to_keep(len(tokens)) for tokens in batch]
        layouts = [tokens.layout for tokens in batch]
        quotas = allocate_images(images.weights, images.layout, grids, budgets, self.allocation, layouts)
        return select_by_quota(self.name, images, quotas, budgets, self.backend)

    def _score_on_device(
        self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]
    ) -> tuple[ScoredImages, list[list[Grid]]]:
        """Score all images at once. Also return the grids of the blocks that are covered one by one."""
        aligned, asked = zip(*(require_text(*each) for each in zip(batch, texts, strict=True)), strict=True)
        blocks = [tokens.blocks for tokens in batch] if self.scope == "block" else None
        scored = relevance_of_images(aligned, asked, blocks=blocks, scoring=self.scoring)
        smoothed, weights = self._smooth(batch, concatenate([each.score for each in scored]))
        rows = concatenate([self._rows(tokens) for tokens in batch])
        grids = [[(1, len(tokens))] if self.scope == "pool" else list(tokens.grids) for tokens in batch]
        layout = BlockLayout.following([height * width for each in grids for height, width in each], rows.device)
        counts = [len(each) for each in grids]
        by_block = self.normalised_over == "block" and self.scope == "block"
        notes = [constant_note(by_block and len(tokens.grids) > 1) for tokens in batch]
        return ScoredImages(batch, asked, scored, smoothed, weights, rows, layout, counts, notes), grids

    def relevance(self, tokens: VisualTokens, text: TextGuide | None) -> Relevance:
        """Return the map that selection works on, with every intermediate: scores, the smoothed map, the sharpened map.

        Args:
            tokens: The visual tokens, with `aligned`.
            text: The question.
        """
        aligned, text = require_text(tokens, text)
        blocks = tokens.blocks if self.scope == "block" else None
        relevant = relevance(aligned, text.tokens, text.pooled, blocks=blocks, sign=text.sign, scoring=self.scoring)
        smoothed, polarized = self._smooth([tokens], relevant.score)
        words = None if text.words is None else tuple(text.words)
        return replace(relevant, smoothed=smoothed, polarized=polarized, words=words)

    def _smooth(self, batch: Sequence[VisualTokens], score: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smoothed maps and the sharpened maps of all images."""
        maps = [of_block for tokens in batch for of_block in self._maps_of(tokens)]
        if all(maps):
            grids = [grid for of_block in maps for grid in of_block]
            return smooth_and_polarize(score, grids, self.smoothing, self.sigma, self.beta)
        sizes = [rows * columns for tokens in batch for rows, columns in tokens.grids]
        parts = [
            smooth_maps(part, of_block, self.smoothing, self.sigma) if of_block else part
            for part, of_block in zip(score.split(sizes), maps, strict=True)
        ]
        smoothed = torch.cat(parts) if any(maps) else score
        return smoothed, polarize(smoothed, self.beta)

    def _maps_of(self, tokens: VisualTokens) -> list[list[Grid]]:
        """Return the maps that each block is smoothed as; none where it is not smoothed."""
        if self.scope == "pool" and len(tokens.grids) > 1:
            return [[]] * len(tokens.grids)
        if self.smoothing_grid == "own":
            return [[grid] for grid in tokens.grids]
        return [guess_grids(rows * columns) for rows, columns in tokens.grids]

    def _quotas(self, tokens: VisualTokens, weights: Tensor, budget: int) -> list[int]:
        if self.scope == "pool":
            return [budget]
        maps = [weights[block].view(grid) for block, grid in zip(tokens.blocks, tokens.grids, strict=True)]
        return allocate(maps, budget, self.allocation, self.rounding, tokens.layout)


_SELECTORS: dict[str, Callable[..., OrderedPicks]] = {"topk": heaviest_by_quota, "dpp": dpp_by_quota}
