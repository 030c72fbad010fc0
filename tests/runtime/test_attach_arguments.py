"""Arguments and models that people give to `attach`: they work, or one sentence says what would."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.prompts import IMAGES
from helpers.simple_methods import EverySecond
from PIL import Image
from torch import nn

import eadp
from eadp.models.guides import EmbeddingGuide

LLAVA = IMAGES["llava"]


# Methods and budgets.


def test_names_in_a_list() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    with eadp.attach(model, method=[eadp.DivPrune(keep=8), "pyramiddrop"]) as pruned:
        model(**inputs)
    assert [method.name for method in pruned.methods] == ["divprune", "pyramiddrop"]
    assert pruned.last[0].method == "divprune+pyramiddrop"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": ["eadp", "fastv"]}, ValueError, r"needs keep=.*in a list, methods are given with their settings"),
        ({"method": ["eadp", "fastv"], "keep": 8}, TypeError, r"give keep to the methods of the list, as in \[EADP\("),
        ({"method": ["nothing", "fastv"]}, ValueError, "nothing"),
        ({"method": ["none"]}, ValueError, r"one that prunes before .* and one that prunes inside it.*got \['none'\]"),
        ({"method": eadp.DivPrune}, TypeError, "a method such as EADP"),
        ({"method": 3}, TypeError, "the name of a method.*got 3"),
        ({"method": "divprune", "keep": 8, "question": 3}, TypeError, "question must be a text.*got 3"),
    ],
)
def test_what_is_no_method(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        eadp.attach(tiny.model("llava"), **arguments)


@pytest.mark.parametrize(("keep", "kept"), [(np.int64(3), 3), (np.float32(0.25), 4)])
def test_numbers_of_numpy(keep: Any, kept: int) -> None:
    model = tiny.model("llava")
    with eadp.attach(model, method="divprune", keep=keep) as pruned:
        model(**tiny.inputs("llava", LLAVA[:1]))
    assert len(pruned.last[0]) == kept


# Questions.


@pytest.mark.parametrize("questions", [["Who?"], ["Who?", "Where?", "When?"]], ids=["fewer", "more"])
def test_as_many_questions_as_prompts(questions: list[str]) -> None:
    model, processor = tiny.model("llava"), tiny.processor("llava")
    guide = EmbeddingGuide(model.get_input_embeddings(), processor)
    message = f"got {len(questions)} for 2 prompts"
    with eadp.attach(model, processor, keep=4, guide=guide) as pruned:
        with pruned.with_question(questions), pytest.raises(ValueError, match=message):
            model(**tiny.inputs("llava", LLAVA))
        with pruned.with_question(["Who?", "Where?"]):
            model.generate(**tiny.inputs("llava", LLAVA), max_new_tokens=2, num_beams=2)


def questions_in_training(family: str, inputs: dict[str, Any], processor: Any = None) -> list[str]:
    """The questions that a call with these inputs is guided by."""
    asked: list[str] = []

    class Listening(EmbeddingGuide):
        def encode(self, question: str, *args: Any) -> Any:
            asked.append(question)
            return super().encode(question, *args)

    model, processor = tiny.model(family), processor or tiny.processor(family)
    with eadp.attach(model, processor, keep=4, guide=Listening(model.get_input_embeddings(), processor)):
        model(**inputs)
    return asked


def sample(prompt: str, answer: str, mask_prompt: bool = True) -> dict[str, Any]:
    """A training sample of LLaVA: these words after an image, and the answer with labels."""
    inputs = tiny.inputs("llava", LLAVA[:1])
    end = int((inputs["input_ids"][0] == tiny.model("llava").config.image_token_id).nonzero().max()) + 1
    words, told = (torch.tensor(tiny.tokenizer()(text)["input_ids"])[None] for text in (prompt, answer))
    ids = torch.cat([inputs["input_ids"][:, :end], words, told], dim=1)
    labels = ids.clone()
    labels[:, : end + (words.shape[1] if mask_prompt else 0)] = -100
    return {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


@pytest.mark.parametrize("has_labels", [True, False])
def test_paligemmas_answer_is_not_part_of_the_question_in_training(has_labels: bool) -> None:
    processor = copy.deepcopy(tiny.processor("paligemma"))
    processor.tokenizer.bos_token = "<bos>"
    prompt = {"text": "<image>How many?\nA. two", "suffix": "Two\nor three"}
    inputs = processor(images=Image.new("RGB", (16, 16)), **prompt, return_tensors="pt")
    assert "Two" in processor.tokenizer.decode(inputs["input_ids"][0])
    if not has_labels:
        del inputs["labels"]
    assert questions_in_training("paligemma", inputs, processor) == ["How many?\nA. two"]


def test_labels_show_where_a_prompt_without_a_format_ends() -> None:
    (question,) = questions_in_training("llava", sample("How many?", " Two or three."))
    assert question.endswith("How many?")


def test_labels_of_the_whole_text_do_not_hide_the_question() -> None:
    inputs = sample(" USER: How many? ASSISTANT:", " Two or three.", mask_prompt=False)
    assert questions_in_training("llava", inputs) == ["How many?"]


# Embeddings.


def merged(family: str) -> tuple[Any, dict[str, Any], torch.Tensor]:
    """A model, the other inputs of a prompt, and its embeddings with the image features in their places."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:1])
    ids = inputs.pop("input_ids")
    embeddings = model.get_input_embeddings()(ids).clone()
    settings = {name: inputs[name] for name in ("image_sizes", "image_grid_thw") if name in inputs}
    pixels = inputs.pop("pixel_values")
    features = model.base_model.get_image_features(pixels, **settings, return_dict=True).pooler_output
    embeddings[ids == model.config.image_token_id] = torch.cat(list(features))
    return model, inputs, embeddings


def test_merged_embeddings_give_a_warning() -> None:
    """Image features that are already among the embeddings look like any other row, and text may be given so."""
    model, inputs, embeddings = merged("llava")
    with (
        eadp.attach(model, method=EverySecond()) as pruned,
        pytest.warns(UserWarning, match=r"if it has images, none of their tokens are pruned; pass input_ids and pixel"),
    ):
        model(inputs_embeds=embeddings, attention_mask=inputs["attention_mask"])
    assert pruned.last == []


@pytest.mark.parametrize(
    ("family", "told_by"),
    [("llava_next", "image_sizes"), ("qwen2_5_vl", "image_grid_thw and mm_token_type_ids"), ("qwen3_vl", "image_grid")],
)
def test_merged_embeddings_are_refused_where_other_inputs_tell(family: str, told_by: str) -> None:
    model, inputs, embeddings = merged(family)
    message = f"with {told_by}.* already merged .* pass input_ids and pixel_values"
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match=message):
        model(inputs_embeds=embeddings, **inputs)
    model(inputs_embeds=embeddings, **inputs)  # detached, as before


@pytest.mark.filterwarnings("ignore:this prompt is given as inputs_embeds")
def test_embeddings_with_placeholders_but_without_pixels() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    embeddings = model.get_input_embeddings()(inputs["input_ids"])
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="has image placeholders, but"):
        model(inputs_embeds=embeddings, attention_mask=inputs["attention_mask"])


@pytest.mark.filterwarnings("ignore:this prompt is given as inputs_embeds")
def test_text_as_embeddings() -> None:
    model, ids = tiny.model("llava"), torch.arange(40, 50)[None]
    stock = model(input_ids=ids).logits
    with eadp.attach(model, method=EverySecond()):
        torch.testing.assert_close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, stock)


# Assisted decoding.


def test_an_attached_draft_model() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    draft = copy.deepcopy(model)
    with eadp.attach(draft, method=EverySecond()), pytest.raises(ValueError, match=r"draft model .* do not attach"):
        model.generate(**inputs, assistant_model=draft, max_new_tokens=4, do_sample=False)


# Wrappers.


class Adapted(nn.Module):
    """A wrapper as PEFT makes them: two levels, the inner of which calls `forward` of the model itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model.model.forward(*args, **kwargs)


@pytest.mark.parametrize("wrap", [nn.DataParallel, Adapted], ids=["DataParallel", "PEFT"])
@pytest.mark.parametrize("name", ["divprune", "fastv"])
def test_a_wrapped_model(name: str, wrap: Any) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    method = eadp.get_method(name, keep=4)
    with eadp.attach(model, method=method):
        expected, logits = answers(model, **inputs), model(**inputs).logits
    wrapped = wrap(model)
    with eadp.attach(wrapped, method=method) as pruned:
        torch.testing.assert_close(wrapped(**inputs).logits, logits)
        assert torch.equal(answers(model, **inputs)[0], expected[0])
        assert len(pruned.last) == 3
    eadp.attach(wrapped, method=method)
    eadp.detach(model)


@pytest.fixture
def process_group(tmp_path: Any) -> Any:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_distributed_data_parallel() -> None:
    model, inputs = copy.deepcopy(tiny.model("llava")).requires_grad_(True), tiny.inputs("llava", LLAVA)
    inputs["labels"] = inputs["input_ids"].masked_fill(inputs["input_ids"] >= 200, -100)
    with eadp.attach(model, method=EverySecond()):
        loss = model(**inputs).loss
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    with eadp.attach(wrapped, method=EverySecond()) as pruned:
        trained = wrapped(**inputs).loss
        trained.backward()
        assert len(pruned.last) == 3
    torch.testing.assert_close(trained, loss)
    assert any(weight.grad is not None and bool(weight.grad.any()) for weight in model.parameters())
