"""Models by their names."""

from __future__ import annotations

import pytest

from eadp.checkpoints import ask, load_model
from eadp.pocket.samples import samples


def test_the_pocket_model_answers_what_is_asked_by_its_name():
    model, processor = load_model("pocket")
    asked = list(samples("validation", 4))
    inputs = ask(processor, [sample.image for sample in asked], [sample.question for sample in asked])
    out = model.generate(**inputs, do_sample=False)
    answers = processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert sum(sample.right(answer) for sample, answer in zip(asked, answers, strict=True)) >= 3


def test_a_name_that_is_no_model_is_told_what_would_be_one(tmp_path):
    with pytest.raises(ValueError, match="give 'pocket', the folder of a checkpoint"):
        load_model(str(tmp_path))
