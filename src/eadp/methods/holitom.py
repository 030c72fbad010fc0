"""HoliTom: what stands still in a window of frames is merged; of the rest, the tokens with the most attention stay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from eadp.core import (
    Selection,
    TextGuide,
    VisualTokens,
    density_peaks,
    neighbour_cosine,
    rank_descending,
)
from eadp.core.merging import SparseRows
from eadp.methods._attention import complement, received_attention, require_attention, resolve_layer
from eadp.methods._video_merging import correct_row_count, merged_selection
from eadp.methods.base import Need, Newlines, register_method
from eadp.methods.settings import Range
from eadp.methods.video import VideoMethod

NEIGHBOURS = 7
"""Nearest tokens that count for the density of a token, at most."""


class Windows(NamedTuple):
    """The best division of a clip into windows.

    Attributes:
        frames: The range of frames of each window.
        saved: How many tokens are saved if each static token of a window is sent once.
    """

    frames: list[slice]
    saved: int


@register_method
@dataclass(frozen=True)
class HoliTom(VideoMethod):
    """Merge what stands still in a window of frames, and keep the tokens with the most attention of the rest.

    A token is static in a window if its cosine to the same place in the next frame is above τ throughout. The clip is
    divided into the windows that save most: Σ (length − 1)·(static tokens). The budget that this saves is given to
    all tokens alike. Static tokens are averaged over their window and clustered by density peaks; a cluster becomes
    β·its centre + (1 − β)·the mean of its other members. Of the other tokens, each frame keeps those with the highest
    attention.

    Paper: "HoliTom: Holistic Token Merging for Fast Video Large Language Models", NeurIPS 2025. Claim of the authors:
    LLaVA-OneVision keeps 99.1 % of its accuracy with 6.9 % of its FLOPs, together with a stage inside the language
    model.

    Release, the default: With r = min(1, keep·N/(N − saved)), a window keeps ⌊r·static⌉ clusters and each of its
    frames ⌈r·others⌉ tokens, so the total can differ from `keep`. The static rows of a window come first, then its
    frames; with `order="position"`, as on LLaVA-Video, rows are in order of position. Newlines stay for rows that keep
    a token. The released density has a little random noise, ours has none. The release uses τ = 0.65 where it keeps
    10 %. Kept tokens keep their positions on Qwen and are renumbered on LLaVA. A still image is a clip of one frame.

    Departures: The attention is that of one layer of the tower. `exact=True` drops the rows with the least attention,
    or adds tokens with the most, until `keep` rows are left. The stage inside the language model is a method of its
    own: `attach(method=[HoliTom(keep=0.15), FastV(keep=0.5, layers=(21,), fold=True)])` keeps half of the tokens from
    layer 18 of 28 on and folds the others into them.

    Attributes:
        threshold: τ, the cosine above which a token is static. Release: 0.8.
        beta: β, the weight of the centre in the row of a cluster. Release: 0.6.
        longest: The longest window, in frames. Release: 1024.
        order: "static first", or by "position".
        layer: The layer of the tower whose attention is used, counted from the end.
    """

    name: ClassVar[str] = "holitom"
    citation: ClassVar[str] = "HoliTom (NeurIPS 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"vision_attention"})
    merges: ClassVar[bool] = True
    newlines: ClassVar[Newlines] = "kept rows"

    threshold: float = 0.8
    beta: Annotated[float, Range(0, 1)] = 0.6
    longest: Annotated[int, Range(1)] = 1024
    order: Literal["static first", "position"] = "static first"
    layer: int = -1

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        return (resolve_layer(self.name, self.layer, depth),)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        (layer,) = require_attention(self.name, tokens, 1)
        scores, total, size = received_attention(layer), len(tokens), tokens.frames.shape[1]
        is_static = neighbour_cosine(tokens.frames) > self.threshold
        windows = self.divide(is_static)
        share = min(1.0, self.share_of(total) * total / (total - windows.saved))
        static, moving = [], []
        for window in windows.frames:
            still = _static_places(is_static, window)
            static.append(self._merge_static(tokens, window, still, share))
            moving.append(SparseRows.unchanged(_select_moving(scores, window, complement(size, still), share, size)))
        rows = SparseRows.join([*static, *moving])
        if self.exact:
            rows = correct_row_count(rows, scores, self.count_to_keep(total))
        rows = rows.take(rows.tokens.argsort())
        if self.order == "static first":
            is_moving = ~torch.isin(rows.tokens, SparseRows.join(static).tokens)
            last_frames = torch.tensor([window.stop - 1 for window in windows.frames], device=scores.device)
            window_of = torch.searchsorted(last_frames, rows.tokens // size)
            rows = rows.take((2 * window_of + is_moving).sort(stable=True).indices)
        return merged_selection(tokens, rows, self.name, scores)

    def divide(self, is_static: Tensor) -> Windows:
        """Divide a clip into the windows that save most. Of equally good divisions, the last windows are shortest.

        Args:
            is_static: (T − 1)×n, whether each token is like the one at its place in the next frame.
        """
        frames = len(is_static) + 1
        saved, start_of = [0], [0]
        for end in range(1, frames + 1):
            best, start = saved[end - 1], end - 1
            still = is_static.new_ones(is_static.shape[1])
            for begin in range(end - 2, max(-1, end - 1 - self.longest), -1):
                still = still & is_static[begin]
                value = saved[begin] + (end - begin - 1) * int(still.sum())
                if value > best:
                    best, start = value, begin
            saved.append(best)
            start_of.append(start)
        windows, end = [], frames
        while end:
            windows.append(slice(start_of[end], end))
            end = start_of[end]
        return Windows(windows[::-1], saved[-1])

    def _merge_static(self, tokens: VisualTokens, window: slice, still: Tensor, share: float) -> SparseRows:
        """Merge the static tokens of a window. still: their places in a frame. Rows stand for the first frame's."""
        size, length = tokens.frames.shape[1], window.stop - window.start
        count = round(len(still) * share)
        if not count:
            return SparseRows.unchanged(still[:0])
        means = tokens.frames[window][:, still].float().mean(0)
        found = density_peaks(means, count, min(count, NEIGHBOURS))
        is_centre = torch.zeros(len(still), dtype=torch.bool, device=still.device)
        is_centre[found.centres] = True
        members = torch.bincount(found.labels, minlength=count)[found.labels]
        weights = torch.where(is_centre, self.beta, (1 - self.beta) / (members - 1).clamp(min=1))
        weights = weights.masked_fill(members == 1, 1.0) / length
        starts = torch.arange(window.start, window.stop, device=still.device)[:, None] * size
        return SparseRows(
            still[found.centres] + window.start * size,
            found.labels.repeat(length),
            (starts + still).flatten(),
            weights.repeat(length),
        )


def _select_moving(scores: Tensor, window: slice, places: Tensor, share: float, size: int) -> Tensor:
    """Select the tokens with the highest scores in each frame of a window.

    Args:
        scores: N, the attention that each token receives.
        window: The frames.
        places: The places in a frame whose tokens are not static.
        share: How many of them stay.
        size: Tokens per frame.
    """
    kept = []
    for frame in range(window.start, window.stop):
        here = places + frame * size
        kept.append(here[rank_descending(scores[here])[: math.ceil(len(places) * share)]])
    return torch.cat(kept)


def _static_places(is_static: Tensor, window: slice) -> Tensor:
    """Return the places in a frame whose tokens are static throughout a window; none in a window of one frame."""
    inside = is_static[window.start : window.stop - 1]
    return (inside.all(0) & (len(inside) > 0)).nonzero().flatten()
