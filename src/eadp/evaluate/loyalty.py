"""Two views of a pruned model beside accuracy: its loyalty to the unpruned model, and its accuracy on hard samples."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TypeVar

Sample = TypeVar("Sample")

RIGHT = 0.5
"""A sample counts as answered right from this score on."""


def loyalty(answers: Mapping[Sample, str], unpruned: Mapping[Sample, str]) -> float | None:
    """Return the share of answers that equal those of the unpruned model, right or wrong.

    Args:
        answers: The answer to each sample.
        unpruned: The same of the unpruned model. Samples that only one of them has do not count.

    Returns:
        A share in [0, 1]; None if there is no common sample.
    """
    shared = [sample for sample in answers if sample in unpruned]
    if not shared:
        return None
    return sum(answers[sample].strip() == unpruned[sample].strip() for sample in shared) / len(shared)


def hard_samples(downsampled: Mapping[Sample, float]) -> list[Sample]:
    """Return the samples that a method has to earn: those that plain down-sampling does not answer right.

    A benchmark of pruning methods is mostly made of samples that need little of the image, so that a smaller image
    answers them as well. VTC-Bench leaves those out; the down-sampled image must have the budget of the methods.

    Args:
        downsampled: The score of each sample with the image at a lower resolution.
    """
    return [sample for sample, score in downsampled.items() if score < RIGHT]


def mean_on_hard(scores: Mapping[Sample, float], downsampled: Mapping[Sample, float]) -> tuple[float, int] | None:
    """Return the mean score of the hard samples, and their number; None if there are none.

    Args:
        scores: The score of each sample.
        downsampled: The same with the image at a lower resolution.
    """
    hard = [scores[sample] for sample in hard_samples(downsampled) if sample in scores]
    return (fmean(hard), len(hard)) if hard else None
