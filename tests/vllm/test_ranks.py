"""Two ranks that share each layer's heads choose the same tokens and give the same answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import folder_of, settings_of
from engines import Ask, Engine, Transformers, clip, picture, words

SERVER = {"keep": 0.125}
METHODS = [{"method": "eadp"}, {"method": "visionzip"}, {"method": "hiprune"}, {"method": "prumerge", "layer": -2}]


@pytest.mark.parametrize("name", ["pocket", "qwen2_5_vl", "llava_onevision"])
def test_two_ranks_answer_as_transformers_does(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    own = settings_of(name, folder)
    reference = Transformers(folder, **own)
    images, clips = ((), (clip(1, 3),)) if name == "llava_onevision" else ((picture(1, 96, 56),), ())
    asks = [
        Ask(images, (words(1),), {"keep": keep, **method}, clips) for keep in (1.0, 0.5, 0.125) for method in METHODS
    ]
    engine = Engine(folder, SERVER | own, tensor_parallel_size=2, max_num_batched_tokens=96, max_num_seqs=8)
    try:
        found = engine.answers([reference.prompt(ask) for ask in asks], asks)
    finally:
        engine.close()
    assert [list(each.outputs[0].token_ids) for each in found] == [reference.answer(ask, SERVER)[0] for ask in asks]
