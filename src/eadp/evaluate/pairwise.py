"""Which of several methods differ: all pairs on the same questions, corrected for their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from eadp.utils.statistics import holm, paired_p_values

LEVEL = 0.05


@dataclass(frozen=True)
class Pairwise:
    """The pairs of some methods.

    Attributes:
        names: The methods, from the most to the least accurate.
        accuracies: Their accuracies.
        corrected: The p-value of each pair of names, the more accurate one first, after Holm's correction.
    """

    names: tuple[str, ...]
    accuracies: tuple[float, ...]
    corrected: Mapping[tuple[str, str], float]

    def differ(self, a: str, b: str) -> bool:
        """Whether two methods differ significantly."""
        return self.corrected[(a, b) if (a, b) in self.corrected else (b, a)] <= LEVEL

    @property
    def distinct(self) -> tuple[str, ...]:
        """A largest set of methods that all differ from each other, from the most to the least accurate."""
        best: tuple[str, ...] = ()
        for start in range(len(self.names)):
            best = max(best, self._extend((self.names[start],), self.names[start + 1 :]), key=len)
        return best

    def _extend(self, chosen: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
        candidates = tuple(name for name in others if self.differ(chosen[-1], name))
        best = chosen
        for number, name in enumerate(candidates):
            if len(chosen) + len(candidates) - number <= len(best):
                break
            rest = tuple(each for each in candidates[number + 1 :] if all(self.differ(old, each) for old in chosen))
            best = max(best, self._extend((*chosen, name), rest), key=len)
        return best


def compare_all(right: Mapping[str, Sequence[bool]], groups: Sequence[int]) -> Pairwise:
    """Compare all pairs of methods.

    Args:
        right: Per method, whether each answer is right, for the same questions in the same order.
        groups: The scene of each question. Questions about one scene are not independent.

    Raises:
        ValueError: If the methods do not have as many answers as there are groups.
    """
    if unequal := [name for name, answers in right.items() if len(answers) != len(groups)]:
        raise ValueError(f"{', '.join(unequal)} must have {len(groups)} answers, as many as there are questions")
    names = sorted(right, key=lambda name: -np.mean(right[name]))
    pairs = list(combinations(names, 2))
    answers = {name: np.asarray(right[name], float) for name in names}
    differences = np.stack([answers[a] - answers[b] for a, b in pairs], 1) if pairs else np.empty((len(groups), 0))
    corrected = holm(paired_p_values(differences, groups))
    return Pairwise(
        tuple(names),
        tuple(float(answers[name].mean()) for name in names),
        dict(zip(pairs, map(float, corrected), strict=True)),
    )
