"""Golden vectors: recorded calls of released implementations, and the comparison of our outputs with theirs.

A golden vector holds the inputs of one call of an authors' release, its settings, and everything it returned. We run
our method on the same inputs and compare every output array:

- Whole numbers (kept tokens, picks in order, quotas, positions) and texts must be equal.
- Real numbers must agree within `RELATIVE_TOLERANCE` of the array's largest absolute value. The release and we add up
  floating-point numbers in different orders, so the last digits differ.
- Some computations amplify rounding errors beyond that tolerance. For example, word weights are a softmax of entropies
  divided by γ = 0.01. There, an error is accepted if it is at most `PERTURBATION_FACTOR` times the effect of rounding
  itself: every real input is changed by at most one float32 rounding, and we measure how much our own output changes.
  Three random changes are tried, and the largest effect counts.

An output that we do not compute, or that has another shape, is a difference as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

RELATIVE_TOLERANCE = 1e-4
"""Accepted error of real numbers, relative to the largest absolute value of the array."""

PERTURBATION_FACTOR = 10.0
"""Accepted error of real numbers beyond that, relative to the effect of changing the inputs by one float32 rounding."""

PERTURBATIONS = 3
"""Number of random changes of the inputs by which that effect is measured."""

MAX_FILE_BYTES = 64 << 20
"""Size above which a file is rejected."""


@dataclass(frozen=True)
class GoldenVector:
    """One recorded call of a released implementation.

    Attributes:
        method: Name of the folder, which is the name of the module in `eadp.parity` that replays it.
        case: Name of the file without its suffix.
        settings: Settings of the call. Also `repository` and `commit` of the release, and the names of the arrays that
            are `inputs` and `outputs`.
        arrays: Inputs and outputs by name.
    """

    method: str
    case: str
    settings: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    @classmethod
    def load(cls, path: Path) -> GoldenVector:
        """Load METHOD/CASE.npz.

        Raises:
            ValueError: If the file is larger than `MAX_FILE_BYTES`.
        """
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB, which no golden vector is")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name != "settings"}
            settings = json.loads(str(file["settings"]))
        return cls(path.parent.name, path.stem, settings, arrays)

    def __getitem__(self, name: str) -> Tensor:
        """Return an array as a tensor."""
        return torch.from_numpy(np.array(self.arrays[name]))

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    @property
    def outputs(self) -> list[str]:
        """Names of the arrays that the release returned."""
        return list(self.settings["outputs"])

    def perturbed(self, seed: int) -> GoldenVector:
        """Return a copy in which every real input is changed at random by at most one float32 rounding."""
        random = np.random.default_rng(seed)
        arrays = dict(self.arrays)
        for name in self.settings["inputs"]:
            values = arrays.get(name)
            if values is not None and np.issubdtype(values.dtype, np.floating):
                step = np.finfo(np.float32).eps * random.uniform(-1, 1, values.shape)
                arrays[name] = (values * (1 + step)).astype(values.dtype)
        return replace(self, arrays=arrays)

    def project(self, rows: Tensor) -> Tensor:
        """Apply the model's projector: linear, GELU, linear."""
        hidden = F.gelu(F.linear(rows, self["proj_w1"], self["proj_b1"]))
        return F.linear(hidden, self["proj_w2"], self["proj_b2"])


def load_vectors(folder: Path) -> Iterator[GoldenVector]:
    """Load all vectors METHOD/CASE.npz of a folder, method by method."""
    for path in sorted(folder.glob("*/*.npz")):
        yield GoldenVector.load(path)


Replay = Callable[[GoldenVector], Mapping[str, Any]]
"""Runs our method on a vector's inputs and returns our outputs by name."""


def find_differences(vector: GoldenVector, replay: Replay) -> list[str]:
    """Replay a vector and compare our outputs with the release's, by the rules of this module.

    Args:
        vector: The recorded call.
        replay: Runs our method on a vector's inputs.

    Returns:
        One sentence per output that differs. Empty if we agree with the release.
    """
    ours = {name: np.asarray(value) for name, value in replay(vector).items()}
    perturbed: list[Mapping[str, Any]] = []
    differences = []
    for name in vector.outputs:
        expected, actual = vector.arrays[name], ours.get(name)
        if actual is None:
            differences.append(f"{name}: missing")
        elif expected.shape != actual.shape:
            differences.append(f"{name}: shape {actual.shape} instead of {expected.shape}")
        elif not np.issubdtype(expected.dtype, np.floating):
            if wrong := int((expected != actual).sum()):
                differences.append(f"{name}: {wrong} of {expected.size} differ")
        elif (error := _max_abs(actual - expected)) > RELATIVE_TOLERANCE * _max_abs(expected):
            perturbed = perturbed or [replay(vector.perturbed(seed)) for seed in range(PERTURBATIONS)]
            effect = max(_max_abs(np.asarray(outputs[name]) - actual) for outputs in perturbed)
            if error > PERTURBATION_FACTOR * effect:
                differences.append(f"{name}: off by up to {error:.2g}")
    return differences


def _max_abs(values: NDArray[Any]) -> float:
    return float(np.abs(values).max(initial=0.0))
