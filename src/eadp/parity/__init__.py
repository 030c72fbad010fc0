"""Parity: compare each method with its authors' released implementation on the same tensors.

A folder of golden vectors has one folder per method, with one file per recorded call (`vectors.GoldenVector`). The
module here with the same name as the folder runs our method on a vector's inputs; its function is `replay`. `vectors`
compares the outputs. `eadp parity FOLDER` does all of this from the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from eadp.parity.vectors import GoldenVector, find_differences, load_vectors

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
    "mmtok": "MMTok",
    "scope": "SCOPE",
    "vispruner": "VisPruner",
    "evs": "EVS",
    "vidcom2": "VidCom2",
    "vcast": "V-CAST",
    "fastvid": "FastVID",
    "flashvid": "FlashVID",
    "holitom": "HoliTom",
}
"""Title in tables of each folder of vectors that can be replayed."""


@dataclass(frozen=True)
class Comparison:
    """The result of replaying one golden vector.

    Attributes:
        vector: The recorded call.
        differences: One sentence per output that differs from the release's.
    """

    vector: GoldenVector
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether all outputs agree with the release's."""
        return not self.differences


def compare(vector: GoldenVector) -> Comparison:
    """Replay one vector and compare our outputs with the release's.

    Raises:
        ValueError: If no module here replays vectors of this method.
    """
    if vector.method not in TITLES or find_spec(f"{__name__}.{vector.method}") is None:
        raise ValueError(f"cannot replay vectors of method {vector.method!r}; known: {', '.join(TITLES)}")
    replay = import_module(f"{__name__}.{vector.method}").replay
    return Comparison(vector, tuple(find_differences(vector, replay)))


def compare_all(folder: Path) -> Iterator[Comparison]:
    """Replay all vectors of a folder. Folders of unknown methods are skipped.

    Raises:
        ValueError: If the folder does not exist.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give one that contains a folder of .npz files per method")
    for vector in load_vectors(folder):
        if vector.method in TITLES:
            yield compare(vector)


def summarize(comparisons: list[Comparison]) -> list[tuple[str, str, int, int]]:
    """Summarize comparisons per method, in the order of `TITLES`.

    Returns:
        (title, releases, number of equal vectors, number of vectors) of each method that has vectors.
    """
    rows = []
    for method, title in TITLES.items():
        of_method = [comparison for comparison in comparisons if comparison.vector.method == method]
        if of_method:
            releases = sorted({_release(comparison.vector) for comparison in of_method})
            rows.append((title, ", ".join(releases), sum(each.equal for each in of_method), len(of_method)))
    return rows


def _release(vector: GoldenVector) -> str:
    return f"{vector.settings['repository']} {vector.settings['commit'][:7]}"
