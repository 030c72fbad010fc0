"""Two tensor-parallel ranks, which divide the heads of each layer, select the same tokens and give the same answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import folder_of, settings_of
from engines import Engine, Query, Transformers, clip, random_image, random_question

SERVER = {"keep": 0.125}
METHODS = [{"method": "eadp"}, {"method": "visionzip"}, {"method": "hiprune"}, {"method": "prumerge", "layer": -2}]


@pytest.mark.parametrize("name", ["pocket", "qwen2_5_vl", "llava_onevision"])
def test_two_ranks_give_the_answers_of_transformers(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    own = settings_of(name, folder)
    reference = Transformers(folder, **own)
    images, clips = ((), (clip(1, 3),)) if name == "llava_onevision" else ((random_image(1, 96, 56),), ())
    queries = [
        Query(images, (random_question(1),), {"keep": keep, **method}, clips)
        for keep in (1.0, 0.5, 0.125)
        for method in METHODS
    ]
    engine = Engine(folder, SERVER | own, tensor_parallel_size=2, max_num_batched_tokens=96, max_num_seqs=8)
    try:
        found = engine.answers([reference.prompt(query) for query in queries], queries)
    finally:
        engine.close()
    assert [list(each.outputs[0].token_ids) for each in found] == [
        reference.answer(query, SERVER)[0] for query in queries
    ]
