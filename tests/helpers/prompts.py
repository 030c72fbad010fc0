"""The test prompts of each family: batches of two prompts of different lengths, with one or two images or clips."""

from __future__ import annotations

import pytest

from helpers import tiny

Sizes = list[list[tuple[int, ...]]]

IMAGES: dict[str, Sizes] = {
    "llava": [[(28, 28)], [(28, 28), (28, 28)]],
    "llava_next": [[(30, 50)], [(56, 20)]],
    "llava_next_video": [[(30, 50)], [(56, 20)]],
    "llava_onevision": [[(30, 50)], [(100, 100)]],
    "qwen2_5_vl": [[(16, 24)], [(24, 32), (16, 16)]],
    "qwen3_vl": [[(16, 24)], [(24, 32), (16, 16)]],
    "internvl": [[(24, 48)], [(24, 24)]],
    "idefics3": [[(48, 48)], [(24, 24), (24, 48)]],
    "smolvlm": [[(48, 48)], [(24, 24), (24, 48)]],
    "gemma3": [[(32, 32)], [(32, 32), (32, 32)]],
    "paligemma": [[(16, 16)], [(16, 16)]],
}
CLIPS: dict[str, Sizes] = {
    "llava_next_video": [[(3, 28, 28)], [(3, 28, 28)]],
    "llava_onevision": [[(3, 28, 28)], [(3, 28, 28)]],
    "qwen2_5_vl": [[(2, 16, 24)], [(3, 16, 16)]],
    "qwen3_vl": [[(2, 16, 24)], [(3, 16, 16), (16, 24)]],
}

every_family = pytest.mark.parametrize("family", tiny.FAMILIES)
every_prompt = pytest.mark.parametrize(
    ("family", "sizes"),
    [*IMAGES.items(), *CLIPS.items()],
    ids=[*IMAGES, *(f"{family}-video" for family in CLIPS)],
)
