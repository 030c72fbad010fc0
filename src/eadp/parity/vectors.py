"""Golden vectors: the inputs of one call of a released implementation, its settings, and what it answered."""

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

TOLERANCE = 1e-4
"""Of real numbers, as a share of the largest of an array; whole numbers must be equal."""

MAGNIFIED = 10.0
"""Where a computation magnifies the rounding of its inputs more than that (softmax of entropies over γ = 0.01), as many
times what moving the inputs by one rounding of float32 does."""

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

    def moved(self, seed: int) -> Vector:
        """The same with every real input moved by at most one rounding of float32."""
        random = np.random.default_rng(seed)
        arrays = dict(self.arrays)
        for name in self.settings["inputs"]:
            values = arrays.get(name)
            if values is not None and np.issubdtype(values.dtype, np.floating):
                step = np.finfo(np.float32).eps * random.uniform(-1, 1, values.shape)
                arrays[name] = (values * (1 + step)).astype(values.dtype)
        return replace(self, arrays=arrays)

    def project(self, rows: Tensor) -> Tensor:
        """The model's projector: linear, GELU, linear."""
        hidden = F.gelu(F.linear(rows, self["proj_w1"], self["proj_b1"]))
        return F.linear(hidden, self["proj_w2"], self["proj_b2"])


def vectors_in(folder: Path) -> Iterator[Vector]:
    """All the vectors below a folder, method by method."""
    for path in sorted(folder.glob("*/*.npz")):
        yield Vector.load(path)


Replay = Callable[[Vector], Mapping[str, Any]]
"""Runs our method on a vector's inputs and gives its outputs by name."""


def differences(vector: Vector, replay: Replay) -> list[str]:
    """The outputs in which we differ from the release, and how; an output that we do not give differs too."""
    ours = {name: np.asarray(value) for name, value in replay(vector).items()}
    moved: list[Mapping[str, Any]] = []
    found = []
    for name in vector.outputs:
        want, got = vector.arrays[name], ours.get(name)
        if got is None:
            found.append(f"{name}: missing")
        elif want.shape != got.shape:
            found.append(f"{name}: shape {got.shape} instead of {want.shape}")
        elif np.issubdtype(want.dtype, np.integer):
            if wrong := int((want != got).sum()):
                found.append(f"{name}: {wrong} of {want.size} differ")
        elif (off := _largest(got - want)) > TOLERANCE * _largest(want):
            moved = moved or [replay(vector.moved(seed)) for seed in range(3)]
            if off > MAGNIFIED * max(_largest(np.asarray(each[name]) - got) for each in moved):
                found.append(f"{name}: off by up to {off:.2g}")
    return found


def _largest(values: NDArray[Any]) -> float:
    return float(np.abs(values).max(initial=0.0))
