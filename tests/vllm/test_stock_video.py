"""vLLM's own video pruning beside the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import folder_of
from engines import Engine


def test_the_rate_of_vllms_own_pruning_is_refused_beside_the_plugin(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--video-pruning-rate is for vLLM's own video pruning"):
        Engine(folder_of("qwen2_5_vl", tmp_path), {"keep": 0.5}, video_pruning_rate=0.5)
