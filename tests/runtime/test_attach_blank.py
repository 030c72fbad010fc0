"""Images and prompts from which no relevance can be computed are covered evenly; they do not end generate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.methods import PRUNING
from helpers.prompts import CLIPS, Sizes, every_prompt
from PIL import Image

import eadp
from eadp.methods import get_method_class
from eadp.models.guides import EmbeddingGuide
from eadp.models.prompt import build_inputs

EMPTY = "the question is empty"
SAME = "the text does not tell the tokens apart: "
EVENLY = f"{SAME}they are covered evenly"
ON_A_GRID = f"{SAME}those on an even grid stay"
ALIKE = "all tokens are alike: those on an even grid stay"
GREY = Image.new("RGB", (60, 40), (128, 128, 128))
READING = [name for name in PRUNING if get_method_class(name).needs & {"text", "word_embeddings"}]


def selected(family: str, inputs: dict[str, Any], method: Any = "eadp", **settings: Any) -> list[eadp.Selection]:
    """The selections of one generate, with input embeddings as the guide where the method reads the question."""
    model, guide = tiny.model(family), None
    if method in READING or isinstance(method, eadp.EADP):
        guide = EmbeddingGuide(model.get_input_embeddings(), tiny.tokenizer())
    if not isinstance(method, str):
        settings.pop("keep", None)
    with eadp.attach(model, tiny.tokenizer(), method=method, guide=guide, **settings) as pruned:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
        return pruned.last


def without_contrast(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same prompts with images or clips of one colour. Not 0: Idefics3 takes that for a missing image."""
    pixels = {name: torch.full_like(inputs[name], -1.0) for name in inputs if name.startswith("pixel_values")}
    return {**inputs, **pixels}


def without_text(inputs: dict[str, Any]) -> dict[str, Any]:
    """The prompt of a batch of one without its text: BOS and what belongs to the image stay."""
    (ids,) = inputs["input_ids"]
    stays = (ids < 32) | (ids >= 200)
    stays[0] = True
    return {name: value[:, stays] if value.shape[:2] == (1, len(ids)) else value for name, value in inputs.items()}


# Every method, every family.


@every_prompt
@pytest.mark.parametrize("blank", [without_contrast, without_text])
def test_no_method_ends_generate(family: str, sizes: Sizes, blank: Any) -> None:
    inputs = blank(tiny.inputs(family, sizes[:1]))
    # The times of Qwen3-VL's frames are text.
    question = {"question": ""} if blank is without_text and family == "qwen3_vl" else {}
    (even,) = selected(family, inputs, "uniform", keep=4)
    for name in PRUNING:
        (kept,) = selected(family, inputs, name, keep=4, **question)
        assert 1 <= len(kept) <= kept.total, name
        if name not in READING:
            continue
        is_empty = blank is without_text
        assert any("question" in note for note in kept.notes) == is_empty, (name, kept.notes)
        on_a_grid = {ALIKE, ON_A_GRID} & {*kept.notes} or (name == "topk" and EVENLY in kept.notes)
        count = 4 if on_a_grid else 0
        assert kept.indices[:count].tolist() == even.indices[:count].tolist(), (name, kept.notes)
        if is_empty:
            assert on_a_grid or name in ("eadp", "cdpruner", "mmtok")


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("sizes", [[[(16, 24)]], CLIPS["qwen2_5_vl"][:1]], ids=["image", "clip"])
def test_where_all_tokens_are_alike_an_even_grid_stays(name: str, sizes: Sizes) -> None:
    """The tower of Qwen2.5-VL gives every patch of one colour the same features."""
    inputs = without_contrast(tiny.inputs("qwen2_5_vl", sizes))
    (kept,) = selected("qwen2_5_vl", inputs, name, keep=4, question="What is it?")
    (even,) = selected("qwen2_5_vl", inputs, "uniform", keep=4)
    assert kept.indices[:4].tolist() == even.indices.tolist()
    notes = {
        "eadp": (EVENLY, ALIKE),
        "cdpruner": (f"{SAME}diversity alone selects", ALIKE),
        "mmtok": (ALIKE,),
        "topk": (EVENLY,),
        "trim": (ON_A_GRID,),
    }
    assert kept.notes == notes[name]


def test_what_the_notes_say_of_an_empty_question() -> None:
    inputs = tiny.inputs("llava", [[(28, 28)]])
    notes = {name: selected("llava", inputs, name, keep=4, question=" ")[0].notes for name in READING}
    assert notes == {
        "eadp": (EMPTY, EVENLY),
        "cdpruner": (EMPTY, f"{SAME}diversity alone selects"),
        "mmtok": ("the question has no words: the image alone is covered",),
        "topk": (EMPTY, EVENLY),
        "trim": (EMPTY, ON_A_GRID),
    }


def test_cdpruner_without_a_question_selects_by_diversity_alone() -> None:
    inputs = tiny.inputs("llava", [[(28, 28)]])
    (kept,) = selected("llava", inputs, "cdpruner", keep=4, question="")
    (diverse,) = selected("llava", inputs, "cdpruner", keep=4, question="What is it?", theta=0.0)
    assert kept.indices.tolist() == diverse.indices.tolist()


def test_mmtok_on_qwen_does_not_take_its_own_prefix_for_the_question() -> None:
    (kept,) = selected("qwen2_5_vl", tiny.inputs("qwen2_5_vl", [[(16, 24)]]), "mmtok", keep=4, question="")
    assert kept.notes == ("the question has no words: the image alone is covered",)


def test_trim_by_outliers_finds_none_without_a_question() -> None:
    (kept,) = selected("llava", tiny.inputs("llava", [[(28, 28)]]), "trim", question="")
    assert len(kept) == 1
    assert kept.notes == (EMPTY, f"{SAME}only their mean stays")


@pytest.mark.parametrize("selection", ["topk", "dpp"])
@pytest.mark.parametrize("scope", ["block", "pool"])
def test_eadp_with_another_selection(selection: Any, scope: Any) -> None:
    method = eadp.EADP(keep=4, selection=selection, scope=scope)
    for sizes in ([[(16, 24)]], CLIPS["qwen2_5_vl"][:1]):
        inputs = without_contrast(tiny.inputs("qwen2_5_vl", sizes))
        (kept,) = selected("qwen2_5_vl", inputs, method, question="What is it?")
        (even,) = selected("qwen2_5_vl", inputs, "uniform", keep=4)
        assert kept.indices.tolist() == even.indices.tolist()


def test_one_black_frame_is_not_taken_for_a_black_clip() -> None:
    inputs = tiny.inputs("qwen2_5_vl", CLIPS["qwen2_5_vl"][:1])
    pixels = inputs["pixel_values_videos"].clone()
    pixels[: len(pixels) // 2] = -1.0
    method = eadp.EADP(keep=6, selection="topk", normalised_over="block", allocation="uniform")
    (kept,) = selected("qwen2_5_vl", {**inputs, "pixel_values_videos": pixels}, method, question="What happens?")
    (even,) = selected("qwen2_5_vl", inputs, "uniform", keep=6)
    assert kept.notes == ("the text does not tell the tokens of some blocks apart: those blocks are covered evenly",)
    assert kept.indices[:3].tolist() == even.indices[:3].tolist()
    weights = kept.scores[6:]
    assert {*(kept.indices[3:] - 6).tolist()} == {*weights.topk(3).indices.tolist()}


# The presets of EADP.


@pytest.mark.parametrize("preset", [None, "paper", "published"])
@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_5_vl"])
def test_an_image_without_a_question(family: str, preset: str | None) -> None:
    (kept,) = selected(family, build_inputs(tiny.processor(family), [GREY], [""]), question="", keep=4, preset=preset)
    assert kept.notes[:2] == (EMPTY, EVENLY)
    assert 4 <= len(kept) < kept.total


@pytest.mark.parametrize("preset", [None, "paper", "published"])
def test_a_uniform_image(preset: str | None) -> None:
    inputs = build_inputs(tiny.processor("qwen2_5_vl"), [GREY], ["What is it?"])
    (kept,) = selected("qwen2_5_vl", inputs, keep=4, preset=preset)
    (even,) = selected("qwen2_5_vl", inputs, "uniform", keep=4)
    assert kept.notes == (EVENLY, ALIKE)
    assert kept.indices.tolist() == even.indices.tolist()
