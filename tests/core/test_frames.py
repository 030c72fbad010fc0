"""Similarity of neighbouring frames, segments, density scores, and merged rows by their entries."""

from __future__ import annotations

import math

import pytest
import torch

from eadp.core import VisualTokens, cut_segments, density_peaks, density_scores, neighbour_cosine
from eadp.core.merging import SparseRows


def test_neighbouring_frames_are_compared_place_by_place() -> None:
    frames = torch.tensor([[[1.0, 0], [0, 2]], [[3, 0], [2, 0]], [[3, 4], [0, 0]]])
    assert neighbour_cosine(frames).tolist() == [[1, 0], [pytest.approx(0.6), 0]]
    assert neighbour_cosine(frames[:, 0]).tolist() == [1, pytest.approx(0.6)]
    assert neighbour_cosine(frames[:1]).shape == (0, 2)


@pytest.mark.parametrize(
    ("threshold", "at_least", "lengths"),
    [
        (0.5, 1, [2, 3]),
        (0.5, 2, [2, 3]),
        (0.5, 3, [2, 2, 1]),  # the smallest similarity above the threshold is added
        (0.0, 1, [5]),
        (0.95, 1, [1, 1, 1, 1, 1]),
        (0.0, 99, [1, 1, 1, 1, 1]),
    ],
)
def test_a_clip_is_cut_where_frames_differ(threshold: float, at_least: int, lengths: list[int]) -> None:
    segments = cut_segments(torch.tensor([0.9, 0.2, 0.8, 0.6]), threshold, at_least)
    assert [each.stop - each.start for each in segments] == lengths
    assert [each.start for each in segments] == [0, *(each.stop for each in segments[:-1])]


def test_a_clip_of_one_frame_is_one_segment() -> None:
    assert cut_segments(torch.zeros(0), 0.9, 8) == [slice(0, 1)]


def test_density_scores_by_hand() -> None:
    # On a line, with one channel: distances 1, 2 and 3; the two nearest of each point are itself and one other.
    points = torch.tensor([[0.0], [1.0], [3.0]])
    dense, sparse = math.exp(-1 / 2), math.exp(-4 / 2)
    # Points 0 and 1 are equally dense, and the lower index counts as denser.
    assert density_scores(points, 2).tolist() == pytest.approx([dense * 3, dense * 1, sparse * 2])
    assert density_peaks(points, 2, neighbours=2).centres.tolist() == [0, 1]
    assert density_scores(points[:0], 2).tolist() == []


def test_only_clips_have_frames() -> None:
    features = torch.arange(12.0).view(6, 2)
    assert VisualTokens(features, None, [(1, 3), (1, 3)], is_clip=True).frames.shape == (2, 3, 2)
    assert VisualTokens(features, None, [(1, 3), (1, 3)]).frames.shape == (1, 6, 2)
    with pytest.raises(ValueError, match=r"the frames of a clip have one grid, got \[\(1, 2\), \(2, 2\)\]"):
        VisualTokens(features, None, [(1, 2), (2, 2)], is_clip=True)


def test_merged_rows_are_joined_and_taken() -> None:
    kept = SparseRows.unchanged(torch.tensor([4, 1]))
    mean = SparseRows(torch.tensor([0]), torch.tensor([0, 0]), torch.tensor([0, 2]), torch.tensor([0.5, 0.5]))
    rows = SparseRows.join([kept, mean])
    assert rows.tokens.tolist() == [4, 1, 0]
    assert rows.dense(5).tolist() == [[0, 0, 0, 0, 1], [0, 1, 0, 0, 0], [0.5, 0, 0.5, 0, 0]]
    taken = rows.take(torch.tensor([2, 0]))
    assert taken.tokens.tolist() == [0, 4]
    assert taken.dense(5).tolist() == [[0.5, 0, 0.5, 0, 0], [0, 0, 0, 0, 1]]
