"""The paper's equations in float64 NumPy, written independently of `eadp.core` and as plainly as possible.

Slow; used only to check `eadp.core` in tests.
"""

import itertools
import math

import numpy as np


def cosine(a, b):
    """Eq. 2 and 3, without the sign."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    norms_a, norms_b = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    out = np.zeros((len(a), len(b)))
    for i in range(len(a)):
        for j in range(len(b)):
            if norms_a[i] > 0 and norms_b[j] > 0:
                out[i, j] = a[i] @ b[j] / (norms_a[i] * norms_b[j])
    return out


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def dispersion(c, tau, kind):
    """Eq. 4 and 5, and the measures of the ablation."""
    p = softmax(c / tau, axis=1)
    if kind == "entropy":
        return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1)
    if kind == "central_mass":
        top = max(1, math.ceil(0.05 * c.shape[1]))
        return 1 - np.sort(p, axis=1)[:, -top:].sum(axis=1)
    return -c.var(axis=1)


def dense_guidance(c, q, tau, gamma, kind="entropy", aggregation="neg_entropy"):
    """Eq. 6 to 8: the dispersion of each word, which words are kept, and the dense guidance score."""
    h = dispersion(c, tau, kind)
    m = math.ceil(round(q * len(h), 9))
    kept = h <= np.sort(h)[m - 1]
    ck, hk = c[kept], h[kept]
    if aggregation == "neg_entropy":
        score = softmax(-hk / gamma) @ ck
    elif aggregation == "gated":
        gate = 1 / (1 + np.exp(-(hk.mean() - hk)))
        score = gate / (gate.sum() + 1e-6) @ ck
    elif aggregation == "gated_softmax":
        score = softmax(1.0 * (h.mean() - hk)) @ ck
    elif aggregation == "inverse_entropy":
        score = (softmax(ck / ((hk[:, None] + 1e-6) * gamma), axis=0) * ck).sum(axis=0)
    elif aggregation == "inverse_entropy_flat":
        score = softmax(1 / ((hk + 1e-6) * gamma)) @ ck
    else:
        score = np.sort(ck, axis=0)[-min(5, len(ck)) :].mean(axis=0)
    return h, kept, score


def relevance(
    visual, segments, pooled, mu=0.5, q=0.5, tau=0.01, gamma=0.01, sign=-1, kind="entropy", agg="neg_entropy"
):
    """Eq. 9: the fused score before min-max, averaged over segments."""
    fused = np.zeros(len(visual))
    for text, vector in zip(segments, pooled, strict=True):
        s_global = sign * cosine(visual, vector[None])[:, 0]
        s_dense = dense_guidance(sign * cosine(text, visual), q, tau, gamma, kind, agg)[2]
        fused += (mu * s_global + (1 - mu) * s_dense) / len(segments)
    return fused


def min_max(s):
    """Eq. 10."""
    return (s - s.min()) / (s.max() - s.min() + 1e-8)


def smooth(s, rows, columns, size=3, sigma=1.0):
    """Eq. 11."""
    r = size // 2
    kernel = np.array(
        [[math.exp(-(y * y + x * x) / (2 * sigma**2)) for x in range(-r, r + 1)] for y in range(-r, r + 1)]
    )
    kernel /= kernel.sum()
    padded = np.pad(np.asarray(s, np.float64).reshape(rows, columns), r, mode="reflect")
    out = np.zeros((rows, columns))
    for y in range(rows):
        for x in range(columns):
            out[y, x] = (padded[y : y + size, x : x + size] * kernel).sum()
    return out.ravel()


def similarity(f):
    """Supplement, visual similarity rebound."""
    return (1 + cosine(f, f)) / 2


def objective(sim, w, chosen):
    """F(Y) = Σ_j w_j · max_{i∈Y} Sim_ij (Eq. 13)."""
    return float(w @ sim[list(chosen)].max(axis=0)) if len(chosen) else 0.0


def coverage(sim, w, chosen):
    """F(Y), scaled so that the best single token has 0 and all tokens have 1."""
    sim, w = np.asarray(sim, np.float64), np.asarray(w, np.float64)
    single, full = max(objective(sim, w, [i]) for i in range(len(sim))), objective(sim, w, range(len(sim)))
    return (objective(sim, w, chosen) - single) / (full - single)


def facility_location(sim, w, k):
    """The paper's greedy algorithm by Eq. 14: the picks in order, and their gains."""
    sim, w = np.asarray(sim, np.float64), np.asarray(w, np.float64)
    current, order, gains = np.zeros(len(sim)), [], []
    for _ in range(k):
        gain = (w * np.maximum(0, sim - current)).sum(axis=1)
        gain[order] = -1
        u = int(gain.argmax())
        order.append(u)
        gains.append(gain[u])
        current = np.maximum(current, sim[u])
    return order, gains


def facility_location_with_ties(similarity, weights, keep):
    """Facility location with the tie rules of `core.ties`: dense, in float64, each candidate compared with the best."""
    similarity, weights = np.asarray(similarity, np.float64), np.asarray(weights, np.float64)
    noise, tie = 2.0**-20, 2.0**-18
    covered, order, gains = np.zeros(len(weights)), [], []
    for _ in range(keep):
        rises = np.maximum(0, similarity - covered) * (weights > 0)
        gain = np.where(rises.max(axis=1) > noise, rises @ weights, 0)
        left = [u for u in range(len(weights)) if u not in order]
        best = max(left, key=lambda u: gain[u])
        rounding = noise * weights[rises[best] > noise].sum()
        is_copy = similarity[best] >= similarity[best, best] - noise
        pick = next(
            u for u in left if gain[u] >= gain[best] * (1 - tie) or (is_copy[u] and gain[u] >= gain[best] - rounding)
        )
        order.append(pick)
        gains.append(gain[pick])
        covered = np.maximum(covered, similarity[pick])
    return order, gains


def dpp(kernel, k):
    """Greedy DPP by determinants: each pick maximizes the determinant of the picked submatrix."""
    kernel, order = np.asarray(kernel, np.float64), []
    for _ in range(k):
        left = [i for i in range(len(kernel)) if i not in order]
        order.append(max(left, key=lambda i: (np.linalg.slogdet(kernel[np.ix_([*order, i], [*order, i])])[1], -i)))
    return order


def max_min(distance, k):
    """Farthest-first traversal."""
    distance, n = np.asarray(distance, np.float64), len(distance)
    order = [max(range(n), key=lambda i: (min(distance[i, j] for j in range(n) if j != i), -i))]
    while len(order) < k:
        left = [i for i in range(n) if i not in order]
        order.append(max(left, key=lambda i: (min(distance[i, j] for j in order), -i)))
    return order


def algorithm_1(features, aligned, text, pooled, grids, budget, beta=2.0, **settings):
    """Algorithm 1 with B ≥ 1 blocks of any size.

    S^I is computed block by block, with one min-max over all blocks. Quotas follow the importance-based allocation with
    the paper's floors, and each block is covered greedily. Returns the weights, the quotas and the picks of each block.
    """
    bounds = np.cumsum([0, *[rows * columns for rows, columns in grids]])
    blocks = [slice(start, end) for start, end in itertools.pairwise(bounds)]
    raw = [relevance(aligned[block], [text], [pooled], **settings) for block in blocks]
    score = min_max(np.concatenate(raw))
    weights = [smooth(score[block], *grid) ** beta for block, grid in zip(blocks, grids, strict=True)]
    total = sum(each.sum() for each in weights)
    quotas = [max(1, math.floor(each.sum() / total * budget)) for each in weights]
    picks = [
        facility_location(similarity(features[block]), each, quota)[0]
        for block, each, quota in zip(blocks, weights, quotas, strict=True)
    ]
    return weights, quotas, picks
