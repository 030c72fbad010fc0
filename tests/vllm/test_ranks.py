"""Engines of several ranks give the answers of transformers: ranks divide the heads, the images, or the layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from checkpoints import folder_of, settings_of
from engines import Engine, Query, Transformers, clip, random_image, random_question

SERVER = {"keep": 0.125}
BUDGETS = (1.0, 0.5, 0.125)
BY_FEATURES = [{"method": "eadp"}, {"method": "divprune"}]
BY_ATTENTION = [{"method": "visionzip"}, {"method": "hiprune", "exact": True}, {"method": "prumerge", "layer": -2}]
RUNS_V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"


def check(name: str, place: Path, methods: list[dict[str, Any]], **ranks: Any) -> None:
    folder = folder_of(name, place)
    own = settings_of(name, folder)
    reference = Transformers(folder, **own)
    images, clips = ((), (clip(1, 3),)) if name == "llava_onevision" else ((random_image(1, 96, 56),), ())
    queries = [
        Query(images, (random_question(1),), {"keep": keep, **method}, clips) for keep in BUDGETS for method in methods
    ]
    engine = Engine(folder, SERVER | own, max_num_batched_tokens=96, max_num_seqs=8, **ranks)
    try:
        found = engine.answers([reference.prompt(query) for query in queries], queries)
    finally:
        engine.close()
    assert [list(each.outputs[0].token_ids) for each in found] == [
        reference.answer(query, SERVER)[0] for query in queries
    ]


@pytest.mark.skipif(RUNS_V2, reason="on a CPU, tensor parallelism of Model Runner V2 needs a compiler for Triton")
@pytest.mark.parametrize("name", ["pocket", "qwen2_5_vl", "llava_onevision"])
def test_ranks_that_divide_the_heads(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, [*BY_FEATURES, *BY_ATTENTION], tensor_parallel_size=2)


@pytest.mark.skipif(RUNS_V2, reason="on a CPU, tensor parallelism of Model Runner V2 needs a compiler for Triton")
@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_ranks_that_divide_the_images(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, BY_FEATURES, tensor_parallel_size=2, mm_encoder_tp_mode="data")


@pytest.mark.skipif(not RUNS_V2, reason="Model Runner V1 has no pipelines on a CPU")
@pytest.mark.parametrize("name", ["pocket", "llava_next"])
def test_ranks_that_divide_the_layers(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, [*BY_FEATURES, *BY_ATTENTION], pipeline_parallel_size=2)


def test_qwen_in_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pipeline parallelism does not work with pruning on this model"):
        Engine(folder_of("qwen2_5_vl", tmp_path), SERVER, pipeline_parallel_size=2)
