"""Models by their names."""

from __future__ import annotations

import copy
import json
import shutil

import pytest
import torch
from helpers.tiny_processors import processor
from PIL import Image
from tokenizers.processors import TemplateProcessing

from eadp.loading import load_model
from eadp.models.prompt import build_inputs
from eadp.pocket.samples import samples
from eadp.pocket.storage import WEIGHTS


def test_the_pocket_model_answers_what_is_asked_by_its_name():
    model, processor = load_model("pocket")
    asked = list(samples("validation", 4))
    inputs = build_inputs(processor, [sample.image for sample in asked], [sample.question for sample in asked])
    out = model.generate(**inputs, do_sample=False)
    answers = processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert sum(sample.is_correct(answer) for sample, answer in zip(asked, answers, strict=True)) >= 3


def test_a_template_that_writes_bos_gives_one_bos_as_any_other():
    image = Image.new("RGB", (28, 28))
    ids = {}
    for opening in ("", "{{ bos_token }}"):
        own = copy.deepcopy(processor("llava"))
        start = own.tokenizer.bos_token, own.tokenizer.bos_token_id
        own.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{start[0]} $A", special_tokens=[start]
        )
        own.chat_template = opening + own.chat_template
        ids[opening] = build_inputs(own, [image, image], ["what?", "what colour?"])["input_ids"]
        assert (ids[opening] == start[1]).sum(dim=1).tolist() == [1, 1]
    assert torch.equal(*ids.values())


def test_a_name_that_is_no_model_is_told_what_would_be_one(tmp_path):
    with pytest.raises(ValueError, match="give 'pocket', the folder of a checkpoint"):
        load_model(str(tmp_path))


@pytest.fixture
def checkpoint(tmp_path):
    """A folder with the pocket model and its processor."""
    return shutil.copytree(WEIGHTS, tmp_path / "checkpoint")


def test_weights_are_read_from_safetensors_only(checkpoint):
    model, _ = load_model(str(checkpoint))
    (checkpoint / "model.safetensors").unlink()
    torch.save(model.state_dict(), checkpoint / "pytorch_model.bin")
    with pytest.raises(ValueError, match="no model can be read from the folder"):
        load_model(str(checkpoint))


@pytest.mark.parametrize("file", ["config.json", "processor_config.json"])
def test_the_code_of_a_checkpoint_is_not_run(checkpoint, file):
    (checkpoint / "own.py").write_text("raise SystemExit('the code of the checkpoint was run')")
    names = {"config.json": ("AutoConfig", "AutoModelForImageTextToText"), "processor_config.json": ("AutoProcessor",)}
    about = json.loads((checkpoint / file).read_text())
    about |= {"model_type": "own"} if file == "config.json" else {"processor_class": "Own"}
    about["auto_map"] = dict.fromkeys(names[file], "own.Own")
    (checkpoint / file).write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"trust_remote_code|remote code"):
        load_model(str(checkpoint))
