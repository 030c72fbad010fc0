"""Clips: how alike neighbouring frames are, and where to cut a clip into segments."""

from __future__ import annotations

from torch import Tensor

from eadp.core.ranking import rank_descending
from eadp.core.similarity import unit_rows


def neighbour_cosine(frames: Tensor) -> Tensor:
    """Compute the cosine between each row and the same row of the next frame.

    Args:
        frames: T×n×d, or T×d for one vector per frame.

    Returns:
        (T − 1)×n, or T − 1. The cosine to and from a row of zeros is 0.
    """
    unit = unit_rows(frames.flatten(0, -2), "frames").view(frames.shape)
    return (unit[:-1] * unit[1:]).sum(-1)


def cut_segments(similarity: Tensor, threshold: float, at_least: int = 1) -> list[slice]:
    """Cut a clip between frames that differ.

    Args:
        similarity: T − 1, how alike each frame and the next one are.
        threshold: The clip is cut wherever the similarity is below this.
        at_least: The number of segments to make at least, where there are as many frames. If too few cuts are below
            the threshold, the ones with the smallest similarity are added.

    Returns:
        The range of frames of each segment, in order.
    """
    count = max(int((similarity < threshold).sum()), min(at_least, len(similarity) + 1) - 1)
    ends = sorted((rank_descending(-similarity)[:count] + 1).tolist())
    return [slice(start, end) for start, end in zip([0, *ends], [*ends, len(similarity) + 1], strict=True)]
