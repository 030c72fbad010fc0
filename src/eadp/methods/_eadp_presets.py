"""The settings of EADP's release and of the paper's text."""

from __future__ import annotations

from typing import Any

RELEASED: dict[str, Any] = {
    "q": 0.2,
    "words": "slots",
    "word_count": "floor",
    "gamma": 0.01 + 1e-6,
    "lift": 1e-6,
    "rounding": "released",
}
"""Settings of the authors' release on all its models where it differs from the paper's text."""

LLAVA: dict[str, Any] = {**RELEASED, "beta": 1.0, "smoothing_grid": "guessed"}
QWEN: dict[str, Any] = {**RELEASED, "beta": 2.0, "scope": "pool"}
VIDEO: dict[str, Any] = {
    **RELEASED,
    "q": 0.5,
    "beta": 2.0,
    "gamma": 0.01,
    "aggregation": "inverse_entropy",
    "normalised_over": "block",
    "allocation": "uniform",
    "similarity": "aligned",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llava": LLAVA,
    "llava_next": LLAVA,
    "llava_video": VIDEO,
    "llava_onevision": VIDEO,
    "qwen2_5_vl": QWEN,
    "qwen3_vl": {**QWEN, "deepstack": False},
}
"""The release's settings by family of models. LLaVA-Video has the architecture of LLaVA-OneVision."""

PAPER: dict[str, Any] = {"rounding": "paper"}
"""Settings of the paper's text where it differs from our defaults."""
