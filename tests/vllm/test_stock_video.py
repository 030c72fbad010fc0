"""EVS of the plugin gives the answers of vLLM's own, which runs without the plugin's architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints import folder_of
from engines import Engine, Query, Transformers, clip, random_question

from eadp.serve.engine_config import CPU_WORKER

RATES = (0.2, 0.4)
"""Rates that leave a whole number of tokens, and at least one frame: there both keep as many."""


def answers(engine: Engine, prompts: list[str], queries: list[Query]) -> list[Any]:
    try:
        return [list(each.outputs[0].token_ids) for each in engine.answers(prompts, queries)]
    finally:
        engine.close()


@pytest.mark.parametrize("rate", RATES)
def test_evs_answers_like_vllms_own(rate: float, tmp_path: Path) -> None:
    folder = folder_of("qwen2_5_vl", tmp_path)
    reference = Transformers(folder)
    # Two frames share a time. vLLM rounds the seconds between two times down to whole seconds, transformers does not.
    queries = [
        Query((), (random_question(seed),), clips=(clip(seed, frames),), frames_per_second=2.0)
        for seed, frames in ((1, 4), (2, 6))
    ]
    prompts = [reference.prompt(query) for query in queries]
    # vLLM's own CPU worker does not finish its video pruning: see eadp.serve.cpu_worker.
    stock = answers(Engine(folder, None, video_pruning_rate=rate, worker_cls=CPU_WORKER), prompts, queries)
    ours = answers(Engine(folder, {"method": "evs", "keep": 1 - rate}), prompts, queries)
    assert ours == stock


def test_the_rate_of_vllms_own_pruning_is_refused_beside_the_plugin(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--video-pruning-rate is for vLLM's own video pruning"):
        Engine(folder_of("qwen2_5_vl", tmp_path), {"keep": 0.5}, video_pruning_rate=0.5)
