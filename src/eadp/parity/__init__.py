"""Parity: each method beside the implementation that its authors released, on the same tensors.

A folder of golden vectors has one folder per method, and in it one file per case (`vectors.Vector`). The module of the
same name here runs our method on a vector's inputs (`replay`). `eadp parity FOLDER` compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from eadp.parity.vectors import Vector, differences, vectors_in

TITLES = {
    "eadp_llava": "EADP on LLaVA-1.5",
    "eadp_llava_next": "EADP on LLaVA-NeXT",
    "eadp_video": "EADP on LLaVA-Video",
    "eadp_qwen": "EADP on Qwen-VL",
    "eadp_ablation": "EADP's ablations",
    "cdpruner": "CDPruner",
    "divprune": "DivPrune",
    "hiprune": "HiPrune",
    "visionzip": "VisionZip",
    "dart": "DART",
    "sparsevlm": "SparseVLM",
    "prumerge_plus": "PruMerge+",
    "trim": "TRIM",
    "fastv": "FastV",
    "pyramiddrop": "PyramidDrop",
}
"""The folders of vectors that can be replayed, as they are called in tables."""


@dataclass(frozen=True)
class Outcome:
    """One vector replayed. differences: none where we equal the release."""

    vector: Vector
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.differences


def compare(vector: Vector) -> Outcome:
    """Replay one vector."""
    if vector.method not in TITLES or find_spec(f"{__name__}.{vector.method}") is None:
        raise ValueError(f"no method here replays vectors of {vector.method!r}; known: {', '.join(TITLES)}")
    replay = import_module(f"{__name__}.{vector.method}").replay
    return Outcome(vector, tuple(differences(vector, replay)))


def compare_all(folder: Path) -> Iterator[Outcome]:
    """All the vectors below a folder whose methods are here."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give one with a folder of .npz files for each method")
    for vector in vectors_in(folder):
        if vector.method in TITLES:
            yield compare(vector)


def summary(outcomes: list[Outcome]) -> list[tuple[str, str, int, int]]:
    """For each method: how it is called, the release it is compared with, how many vectors are equal, of how many."""
    rows = []
    for method, title in TITLES.items():
        own = [outcome for outcome in outcomes if outcome.vector.method == method]
        if own:
            releases = sorted({_release(outcome.vector) for outcome in own})
            rows.append((title, ", ".join(releases), sum(outcome.equal for outcome in own), len(own)))
    return rows


def _release(vector: Vector) -> str:
    return f"{vector.settings['repository']} {vector.settings['commit'][:7]}"
