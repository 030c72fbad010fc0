"""Models by their names."""

from __future__ import annotations

import ast
import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny_processors import processor
from PIL import Image
from tokenizers.processors import TemplateProcessing

import eadp
from eadp.loading import load_model
from eadp.models.prompt import build_inputs
from eadp.pocket.samples import samples
from eadp.pocket.storage import WEIGHTS


def test_the_pocket_model_answers_what_is_asked_by_its_name():
    model, processor = load_model("pocket")
    questions = list(samples("validation", 4))
    inputs = build_inputs(processor, [sample.image for sample in questions], [sample.question for sample in questions])
    out = model.generate(**inputs, do_sample=False)
    answers = processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert sum(sample.is_correct(answer) for sample, answer in zip(questions, answers, strict=True)) >= 3


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
    with pytest.raises(ValueError, match="give pocket, things, clips, smol, photo, the folder of a checkpoint"):
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


def test_only_the_checked_file_of_the_tower_is_read_by_torch_and_only_its_tensors():
    calls = [
        (path.relative_to(Path(eadp.__file__).parent).as_posix(), ast.unparse(node))
        for path in Path(eadp.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert [place for place, _ in calls] == ["pocket/photo/tower.py"]
    assert "weights_only=True" in calls[0][1]


def test_every_checkpoint_is_loaded_without_its_code_and_without_pickle():
    calls = []
    for path in Path(eadp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained":
                options = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
                calls.append((f"{path.name}:{node.lineno}", ast.unparse(node.func.value), options))
    # Classes that are not "Auto" never run a checkpoint's code. `kind` is the class of a text encoder.
    auto = [(place, options) for place, owner, options in calls if owner.startswith("Auto")]
    models = [
        (place, options) for place, owner, options in calls if "Model" in owner or "For" in owner or owner == "kind"
    ]
    assert len(auto) >= 5
    assert len(models) >= 3
    assert [place for place, options in auto if options.get("trust_remote_code") is not False] == []
    # A GGUF file, like safetensors, holds numbers and no code.
    weights = [(place, options) for place, options in models if "gguf_file" not in options]
    assert [place for place, options in weights if options.get("use_safetensors") is not True] == []
