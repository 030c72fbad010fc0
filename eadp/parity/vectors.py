"""Golden vectors: the inputs of one call of a released implementation, its settings, and what it answered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

TOLERANCE = 1e-4
"""Relative tolerance of real numbers; whole numbers must be equal."""

LARGEST = 64 << 20
"""Bytes that a vector's file may have."""


@dataclass(frozen=True)
class Vector:
    """One call. method: the folder's name; case: the file's; arrays: inputs and outputs by name."""

    method: str
    case: str
    settings: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    @classmethod
    def load(cls, path: Path) -> Vector:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"{path} is larger than {LARGEST >> 20} MiB: no golden vector is")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name != "settings"}
            settings = json.loads(str(file["settings"]))
        return cls(path.parent.name, path.stem, settings, arrays)

    def __getitem__(self, name: str) -> Tensor:
        """An array as a tensor."""
        return torch.from_numpy(np.array(self.arrays[name]))

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    @property
    def outputs(self) -> list[str]:
        """What the release answered, by name."""
        return list(self.settings["outputs"])

    def project(self, rows: Tensor) -> Tensor:
        """The model's projector: linear, GELU, linear."""
        hidden = F.gelu(F.linear(rows, self["proj_w1"], self["proj_b1"]))
        return F.linear(hidden, self["proj_w2"], self["proj_b2"])


def vectors_in(folder: Path) -> Iterator[Vector]:
    """All the vectors below a folder, method by method."""
    for path in sorted(folder.glob("*/*.npz")):
        yield Vector.load(path)


def differences(vector: Vector, ours: Mapping[str, Any]) -> list[str]:
    """The outputs in which we differ from the release, and how; an output that we do not give differs too."""
    found = []
    for name in vector.outputs:
        if name not in ours:
            found.append(f"{name}: missing")
            continue
        want, got = vector.arrays[name], np.asarray(ours[name])
        if want.shape != got.shape:
            found.append(f"{name}: shape {got.shape} instead of {want.shape}")
        elif np.issubdtype(want.dtype, np.integer):
            if wrong := int((want != got).sum()):
                found.append(f"{name}: {wrong} of {want.size} differ")
        elif not np.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * _scale(want)):
            found.append(f"{name}: off by up to {np.abs(got - want).max():.2g}")
    return found


def _scale(values: NDArray[Any]) -> float:
    """What rounding is relative to where a value is a small difference of large ones: the largest of them."""
    return 0.01 * float(np.abs(values).max(initial=0.0))
