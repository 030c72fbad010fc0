"""FlashVID: diverse salient tokens of every frame, and trees of similar tokens across frames."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import Tensor

from eadp.core import (
    Selection,
    TextGuide,
    VisualTokens,
    cut_segments,
    density_peaks,
    neighbour_cosine,
    rank_descending,
)
from eadp.core.merging import SparseRows
from eadp.core.similarity import unit_rows
from eadp.core.ties import first_true
from eadp.methods._attention import received_attention, require_attention, resolve_layer
from eadp.methods._video_merging import correct_row_count, merged_selection
from eadp.methods.base import Need, register_method
from eadp.methods.settings import Range
from eadp.methods.video import VideoMethod

if TYPE_CHECKING:
    from typing_extensions import Self

NEIGHBOURS = 7
"""Nearest rows that count for the density of a row, at most."""


@register_method
@dataclass(frozen=True)
class FlashVID(VideoMethod):
    """Keep diverse, salient tokens of every frame; link the others across frames to trees, and cluster the trees.

    A clip is cut into segments where the means of neighbouring frames differ. Each frame may keep B = ⌈n·keep·1.25⌉
    tokens. It selects ⌈α·B⌉ of them one by one, each the farthest from those selected: with weight (1 − cos) times the
    attention that the token receives, on LLaVA also times its mean dot product with the means of the segment's frames.
    Every other token is linked to the most similar one of the frame before if their cosine is above a threshold. The
    tokens of a tree are added up and divided by 1 + the number of links to its first token. The trees that begin in a
    frame are clustered by density peaks, and the mean of each cluster is sent.

    Paper: "FlashVID: Efficient Video Large Language Models via Training-free Tree-based Spatiotemporal Token Merging",
    ICLR 2026. Claim of the authors: LLaVA-OneVision keeps 99.1 % of its accuracy with 10 % of its tokens.

    Release, the default: As described above. In segments of one frame all n tokens are clustered, the selected ones
    too. The threshold rises where fewer than B tokens per frame would be left. The released density has a little random
    noise, ours has none. What enters the language model is more than `keep`, by `expansion`; the release then drops 70
    % of it inside, which a chain does here: `attach(method=[FlashVID(keep=0.1), FastV(keep=0.3, layers=(23,))])`, layer
    20 of 28; on Qwen3-VL-8B it keeps 0.1 from layer 28 of 36, `FastV(keep=0.1, layers=(25,))`. Kept tokens keep their
    positions on Qwen and are renumbered on LLaVA. A still image is a clip of one frame.

    Departures: A token is never selected twice, which the release allows where all weights left are negative. A frame
    keeps at least one token. The attention is that of one layer of the tower. `exact=True` drops the rows with the
    least attention, or adds tokens with the most, until `keep` rows are left; `with_exact_count` also sets `expansion`
    to 1.

    Attributes:
        alpha: α, the share of a frame's budget for selected tokens. Release: 0.7.
        threshold: The cosine above which a token is linked to the frame before. Release: 0.8.
        expansion: How many times `keep` is sent. Release: 1.25.
        segments: The number of segments at least. None: as in the release, 8 on LLaVA and 4 on Qwen.
        segment_threshold: The clip is cut between frames whose means have a lower cosine. Release: 0.9.
        relevance: Whether the dot product with the means of frames counts. None: as in the release, on LLaVA but not
            on Qwen.
        layer: The layer of the tower whose attention is used, counted from the end.
    """

    name: ClassVar[str] = "flashvid"
    citation: ClassVar[str] = "FlashVID (ICLR 2026)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention"})
    merges: ClassVar[bool] = True

    alpha: Annotated[float, Range(0, 1)] = 0.7
    threshold: float = 0.8
    expansion: Annotated[float, Range(0, 1000, open_low=True)] = 1.25
    segments: Annotated[int, Range(1)] | None = None
    segment_threshold: float = 0.9
    relevance: bool | None = None
    layer: int = -1

    def with_exact_count(self) -> Self:
        return replace(self, exact=True, expansion=1.0)

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (resolve_layer(self.name, self.layer, depth),)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = require_attention(self.name, tokens, 1)
        scores, size = received_attention(layer), tokens.frames.shape[1]
        chosen = self.select_per_frame(tokens)
        parts = [SparseRows.unchanged(chosen.flatten())]
        for segment in self.cut(tokens):
            parts.append(self._merge_segment(tokens, chosen[segment], segment.start * size))
        rows = SparseRows.join(parts)
        if self.exact:
            rows = correct_row_count(rows, scores, self.count_to_keep(len(tokens)))
        # Stable: the row of a selected token comes before that of a cluster around the same token.
        rows = rows.take(rows.tokens.sort(stable=True).indices)
        return merged_selection(tokens, rows, self.name, scores)

    def cut(self, tokens: VisualTokens) -> list[slice]:
        """Return the range of frames of each segment."""
        means = tokens.frames.float().mean(1)
        at_least = (4 if _is_qwen(tokens) else 8) if self.segments is None else self.segments
        return cut_segments(neighbour_cosine(means), self.segment_threshold, at_least)

    def frame_budget(self, tokens: VisualTokens) -> tuple[int, int]:
        """Return how many tokens a frame may keep, and how many of them are selected."""
        size = tokens.frames.shape[1]
        budget = min(size, math.ceil(size * self.share_of(len(tokens)) * self.expansion))
        return budget, math.ceil(self.alpha * budget)

    def select_per_frame(self, tokens: VisualTokens) -> Tensor:
        """Return T×A, the selected tokens of each frame, sorted, counted from the start of the clip."""
        (layer,) = require_attention(self.name, tokens, 1)
        frames, size = tokens.frames, tokens.frames.shape[1]
        attention = received_attention(layer).double().view(len(frames), size)
        uses_relevance = not _is_qwen(tokens) if self.relevance is None else self.relevance
        picked, chosen = self.frame_budget(tokens)[1], []
        for segment in self.cut(tokens):
            mean = frames[segment].float().mean((0, 1)).double()
            for number in range(segment.start, segment.stop):
                # Frame by frame, because float64 takes much memory.
                frame = frames[number].double()
                unit, weights = unit_rows(frame), attention[number]
                if uses_relevance:
                    weights = weights * (frame @ mean)
                chosen.append(_farthest((1 - unit @ unit.T) * weights, picked) + number * size)
        return torch.stack(chosen)

    def _merge_segment(self, tokens: VisualTokens, chosen: Tensor, start: int) -> SparseRows:
        """Merge the tokens of a segment that were not selected.

        Args:
            tokens: The tokens of the clip.
            chosen: L×A, the selected tokens of the segment's frames.
            start: The first token of the segment.
        """
        size, length = tokens.frames.shape[1], len(chosen)
        features = tokens.features[start : start + length * size].float()
        is_free = torch.ones(length * size, dtype=torch.bool, device=chosen.device)
        if length > 1:
            is_free[(chosen - start).flatten()] = False
        budget, picked = self.frame_budget(tokens)
        parent = _link_frames(features, is_free, size, self.threshold, (size - budget) * length)
        root, links = _follow(parent, size)
        # The weight of a tree's tokens in its row, and then in the row of its cluster.
        share = 1 / (1 + links.float())
        sums = torch.zeros_like(features).index_add_(0, root[is_free], features[is_free])
        trees = sums * share[:, None]
        is_root = is_free & (parent < 0)
        total, cluster = int(is_root.sum()), torch.full_like(parent, -1)
        centres: list[Tensor] = []
        for frame in range(length):
            roots = is_root[frame * size : (frame + 1) * size].nonzero().flatten() + frame * size
            count = math.ceil(len(roots) * (budget - picked) * length / total) if total else 0
            if not count:
                continue
            found = density_peaks(trees[roots], count, min(count, NEIGHBOURS))
            cluster[roots] = found.labels + len(centres)
            share[roots] /= torch.bincount(found.labels)[found.labels]
            centres += roots[found.centres]
        columns = (is_free & (cluster[root] >= 0)).nonzero().flatten()
        in_tree = root[columns]
        row_tokens = torch.stack(centres) if centres else in_tree[:0]
        return SparseRows(row_tokens + start, cluster[in_tree], columns + start, share[in_tree])


def _is_qwen(tokens: VisualTokens) -> bool:
    return any(layer.family.startswith("qwen") for layer in tokens.attention)


def _link_frames(features: Tensor, is_free: Tensor, size: int, threshold: float, most: int) -> Tensor:
    """Link each free token to the most similar free token of the frame before.

    Args:
        features: (L·n)×d, the tokens of a segment.
        is_free: L·n, whether a token may be linked.
        size: n, tokens per frame.
        threshold: The cosine above which tokens are linked.
        most: How many links there may be. If there are more, the most similar ones count.

    Returns:
        L·n, the token that each is linked to, or −1.
    """
    unit = unit_rows(features)
    parent = torch.full((len(features),), -1, device=features.device)
    similarity = unit.new_full((len(features),), -torch.inf)
    for start in range(size, len(features), size):
        earlier = is_free[start - size : start].nonzero().flatten() + start - size
        later = is_free[start : start + size].nonzero().flatten() + start
        if len(earlier) and len(later):
            nearest = (unit[later] @ unit[earlier].T).max(1)
            parent[later], similarity[later] = earlier[nearest.indices], nearest.values
    count = min(most, int((similarity > threshold).sum()))
    parent[rank_descending(similarity)[count:]] = -1
    return parent


def _follow(parent: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the root of each token, and the number of links that end at each. parent: see `_link_frames`."""
    root = torch.arange(len(parent), device=parent.device)
    for start in range(size, len(parent), size):
        frame = slice(start, start + size)
        root[frame] = torch.where(parent[frame] >= 0, root[parent[frame].clamp(min=0)], root[frame])
    return root, torch.bincount(parent[parent >= 0], minlength=len(parent))


def _farthest(distance: Tensor, count: int) -> Tensor:
    """Pick columns one by one, each the one whose smallest entry in the rows of those picked is largest.

    The first pick is the column whose second smallest entry is largest. Ties go to the lowest index.

    Args:
        distance: n×n, from the token of the row to that of the column.
        count: How many to pick.

    Returns:
        The picks, sorted.
    """
    values = distance.sort(dim=0).values[min(1, len(distance) - 1)]
    nearest = torch.full_like(values, torch.inf)
    is_free = torch.ones_like(values, dtype=torch.bool)
    for _ in range(count):
        values = values.masked_fill(~is_free, -torch.inf)
        pick = first_true(values == values.max())
        is_free[pick] = False
        values = nearest = torch.minimum(nearest, distance[pick[0]])
    return (~is_free).nonzero().flatten()
