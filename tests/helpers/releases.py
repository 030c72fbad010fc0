"""What the authors' releases compute, in float64 NumPy, written from the measured facts and not from `eadp`.

Slow; used only to check the methods on sizes and budgets that the golden vectors do not have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def cosine(a: Array, b: Array) -> Array:
    return (a / np.linalg.norm(a, axis=-1, keepdims=True)) @ (b / np.linalg.norm(b, axis=-1, keepdims=True)).T


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def highest(scores: Array, count: int) -> list[int]:
    """The highest scores first; of equal ones, the lowest index first."""
    return np.argsort(-scores, kind="stable")[:count].tolist()


def smooth(s: Array, rows: int, columns: int) -> Array:
    """A 3×3 Gaussian with σ = 1 and a mirrored border that does not repeat the edge."""
    taps = np.exp(-np.array([1.0, 0.0, 1.0]) / 2)
    taps /= taps.sum()
    padded = np.pad(s.reshape(rows, columns), 1, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    return (windows * np.outer(taps, taps)).sum((2, 3)).ravel()


def eadp_scores(aligned: Array, segments: Sequence[Array], pooled: Sequence[Array], kept: float, video: bool) -> Array:
    """The fused score of one block. kept: the share of slots that stay."""
    fused = np.zeros(len(aligned))
    for slots, whole in zip(segments, pooled, strict=True):
        c = -cosine(slots, aligned)
        p = softmax(100 * c, axis=1)
        entropy = -(p * np.log(p + 1e-12)).sum(axis=1)
        stay = np.argsort(entropy, kind="stable")[: max(1, int(kept * len(slots)))]
        c, entropy = c[stay], entropy[stay]
        if video:
            weights = softmax(c / (0.01 * (entropy[:, None] + 1e-6)), axis=0)
        else:
            weights = softmax(-entropy / (0.01 + 1e-6), axis=0)[:, None]
        fused += (0.5 * -cosine(whole[None], aligned)[0] + 0.5 * (weights * c).sum(axis=0)) / len(segments)
    return fused


def lifted_min_max(s: Array) -> Array:
    return (s - s.min() + 1e-6) / (s.max() - s.min() + 1e-6)


def greedy_cover(rows: Array, weights: Array, count: int) -> list[int]:
    similarity = (1 + np.clip(cosine(rows, rows), -1, 1)) / 2
    covered, order = np.zeros(len(rows)), []
    for _ in range(count):
        gains = (weights * np.maximum(0, similarity - covered)).sum(axis=1)
        gains[order] = -1e9
        order.append(int(gains.argmax()))
        covered = np.maximum(covered, similarity[order[-1]])
    return order


def greedy_dpp(rows: Array, relevance: Array, count: int) -> list[int]:
    kernel = relevance[:, None] * cosine(rows, rows) * relevance
    order: list[int] = []
    for _ in range(count):
        left = kernel.diagonal().copy()
        if order:
            known = kernel[np.ix_(order, order)]
            left -= (kernel[order] * np.linalg.solve(known, kernel[order])).sum(axis=0)
        left[order] = -np.inf
        order.append(int(left.argmax()))
    return order


def farthest_first(rows: Array, count: int) -> list[int]:
    distance = 1 - cosine(rows, rows)
    others = distance + np.diag(np.full(len(rows), np.inf))
    order = [int(others.min(axis=1).argmax())]
    while len(order) < count:
        nearest = distance[:, order].min(axis=1)
        nearest[order] = -1
        order.append(int(nearest.argmax()))
    return order


def hiprune(middle: Array, deep: Array, width: int, count: int, alpha: float) -> list[int]:
    total = len(middle)
    anchors = highest(middle, round(count * alpha / 5))
    buffers = [min(max(cell + step, 0), total - 1) for cell in anchors for step in (-1, 1, -width, width)]
    chosen = list(dict.fromkeys(anchors + buffers))
    lowered = deep.copy()
    lowered[chosen] -= 1
    return sorted(set(chosen + highest(lowered, count - len(chosen))))


def visionzip(states: Array, cls: Array, attention: Array, keys: Array, dominant: int, contextual: int) -> Array:
    """The rows before the projector: CLS, the dominant patches by position, the contextual ones."""
    patches = sorted(highest(attention, dominant - 1))
    rest = [index for index in range(len(states)) if index not in patches]
    targets = rest[:: max(1, len(rest) // contextual)][:contextual] if contextual else []
    members: dict[int, list[int]] = {target: [] for target in targets}
    for index in rest if targets else []:
        if index not in members:
            members[targets[int(cosine(keys[index][None], keys[targets])[0].argmax())]].append(index)
    merged = [states[target] + (states[group].mean(0) if group else 0) for target, group in members.items()]
    return np.stack([cls, *states[patches], *merged])


def prumerge(states: Array, attention: Array, keys: Array, neighbours: int) -> Array:
    """The rows before the projector: outliers by falling attention, even samples by position, the sum of the rest."""
    total = len(states)
    low, high = np.percentile(attention, [25, 75])
    outliers = [index for index in highest(attention, total) if attention[index] > high + 1.5 * (high - low)]
    step = int(int(1 / (len(outliers) / total)) / 3)
    even = [index for index in range(0, total - 1, max(1, step)) if index not in outliers]
    kept, rows = outliers + even, []
    for index in kept:
        likeness = cosine(keys[index][None], keys)[0]
        likeness[index] = -np.inf
        nearest = highest(likeness, min(neighbours, total - 1))
        rows.append(states[index] + attention[nearest] @ states[nearest])
    rest = [index for index in range(total) if index not in kept]
    return np.stack([*rows, attention[rest] @ states[rest]])


def dart(hidden: Array, keys: Array, norm: Array, eps: float, start: int, total: int, budget: int) -> list[int]:
    """The kept tokens of the image. hidden: S×d; keys: S×k, all heads in a row."""
    image, words = range(start, start + total), range(start + total, len(hidden))
    length = np.abs(keys).sum(axis=1)
    visual = [start + index for index in highest(length[list(image)], 4)]
    text = [start + total + index for index in highest(length[list(words)], 4)]
    states = hidden / np.sqrt((hidden**2).mean(axis=1, keepdims=True) + eps) * norm
    left, kept = [index for index in image if index not in visual], list(visual)
    for pivot in set(visual + text):  # the release iterates over a set of places
        taken = [left[index] for index in highest(-cosine(states[pivot][None], states[left])[0], budget // 8)]
        kept += taken
        left = [index for index in left if index not in taken]
    return sorted(index - start for index in kept)


def sparsevlm(
    visual: Array, text: Array, attention: Array, states: Array, keep: int
) -> tuple[list[int], list[list[float]]]:
    """The kept tokens, and the recycled rows. attention: H×X×V."""
    total = len(visual)
    fit = softmax(visual @ text.T, axis=1).mean(axis=0)
    raters = fit > fit.mean()
    scores = attention.mean(axis=0)[raters].mean(axis=0)
    kept = sorted(highest(scores, min(keep, total - 1)))
    dropped = [index for index in highest(scores, total) if index not in kept]
    candidates = dropped[: int(0.3 * len(dropped)) + 1]
    clusters = len(candidates) // 10 + 1
    points = states[candidates]
    distance = np.linalg.norm(points[:, None] - points, axis=2) / np.sqrt(points.shape[1])
    density = np.exp(-(np.sort(distance, axis=1)[:, :clusters] ** 2).mean(axis=1))
    # Two points that are each other's nearest have the same density. The release adds noise; here the first is denser.
    separation = []
    for index, own in enumerate(density):
        denser = (density > own) | ((density == own) & (np.arange(len(points)) < index))
        separation.append(distance[index][denser].min() if denser.any() else distance.max())
    centres = highest(density * np.array(separation), clusters)
    owner = distance[:, centres].argmin(axis=1)
    owner[centres] = range(clusters)
    return kept, [points[owner == cluster].mean(axis=0).tolist() for cluster in range(clusters)]


def cover_rows(values: Array, count: int, saliency: Array | None = None, padding: Sequence[int] = ()) -> list[int]:
    """Greedy: the column with the largest sum of what it adds to each row's best, times its saliency."""
    best, order = np.zeros(len(values)), []
    for _ in range(count):
        gains = np.maximum(values - best[:, None], 0).sum(axis=0) * (1 if saliency is None else saliency)
        gains[[*order, *padding]] = -1
        order.append(int(gains.argmax()))
        best = np.maximum(best, values[:, order[-1]])
    return order


def mmtok(words: Array, projected: Array, tower: Array, count: int, padding: Sequence[int] = ()) -> list[int]:
    by_word = softmax(cosine(words, projected) / 0.02, axis=1) / len(words)
    by_token = softmax(cosine(tower, tower) / 0.2, axis=1) / len(tower)
    return cover_rows(np.concatenate([by_word, 0.5 * by_token]), count, padding=padding)


def scope(tower: Array, attention: Array, count: int) -> list[int]:
    """attention: heads×N, of the CLS token."""
    return cover_rows(cosine(tower, tower), count, saliency=attention.sum(axis=0))


def vispruner(tower: Array, attention: Array, count: int, ratio: float) -> list[int]:
    """The important tokens, then the diverse ones. attention: heads×N, of the CLS token."""
    ranked = highest(attention.mean(axis=0), len(tower))
    first = int(count * ratio)
    important, rest, similarity = ranked[:first], ranked[first:], cosine(tower, tower)
    while ratio < 1 and len(rest) > count - first:
        one, other = rest[::2], rest[1::2]
        scores = [max((similarity[a, b] for b in other), default=0.0) for a in one]
        drop = min(8, len(rest) - (count - first), len(one))
        rest = [one[i] for i in highest(np.array(scores), len(one))[drop:]] + other
    return important + (rest if ratio < 1 else [])
