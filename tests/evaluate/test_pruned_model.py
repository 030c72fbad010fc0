"""The pruned model behind both harnesses, and the journal of its answers."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.methods import PRUNING
from PIL import Image
from typer.testing import CliRunner

from eadp.cli import app
from eadp.evaluate import media, pruned_model
from eadp.evaluate.harness_settings import HarnessSettings
from eadp.evaluate.journal import Journal
from eadp.evaluate.journaled_model import EvalRequest, JournaledModel, write_summary
from eadp.evaluate.media import load_clip
from eadp.evaluate.pruned_model import PrunedModel
from eadp.evaluate.wording import remove_short_answer_request
from eadp.pocket.samples import samples
from eadp.utils.images import spread_evenly

FAMILIES = [family for family in tiny.FAMILIES if family not in ("llava_next_video", "smolvlm")]


def make_image(height: int, width: int) -> Image.Image:
    generator = torch.Generator().manual_seed(height)
    return Image.fromarray((torch.rand(height, width, 3, generator=generator) * 255).byte().numpy())


def ask(question: str, *images: Image.Image) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]


@pytest.fixture
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Build a pruned model from the tiny model of a family instead of a checkpoint."""

    def make(family: str, **settings: Any) -> PrunedModel:
        found = tiny.model(family), tiny.processor(family)
        # square=crops changes these lists, and other tests share the model.
        for owner in (found[0].base_model.config, found[1].image_processor):
            if hasattr(owner, "image_grid_pinpoints"):
                monkeypatch.setattr(owner, "image_grid_pinpoints", owner.image_grid_pinpoints)
        monkeypatch.setattr(pruned_model, "load_model", lambda name, **options: found)
        made.append(PrunedModel(HarnessSettings.from_arguments(pretrained=family, **settings)))
        return made[-1]

    made: list[PrunedModel] = []
    yield make
    for each in made:
        each.detach()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_in_a_batch_as_alone_and_counts_tokens(family: str, tiny_model: Any) -> None:
    model = tiny_model(family, method="divprune", keep=4, newlines="none")
    conversations = [ask("where is it?", make_image(40, 60)), ask("what colour?", make_image(70, 30))]
    if family != "paligemma":  # its processor needs an image in every prompt
        conversations.append(ask("no image"))
    together = model.answer(conversations, {"max_new_tokens": 3})
    assert [each.tokens for each in together] == [4, 4, 0][: len(conversations)]
    assert all(each.tokens_before > 4 and each.batch == 2 for each in together[:2])
    alone = [model.answer([each], {"max_new_tokens": 3})[0] for each in conversations]
    assert [(each.answer, each.tokens_before) for each in alone] == [
        (each.answer, each.tokens_before) for each in together
    ]


@pytest.mark.parametrize("method", PRUNING)
def test_every_method_answers_on_the_pocket_model(method: str) -> None:
    # With four layers, sparsevlm's own budget is exceeded by the first one; dart adds its pivots to the budget; evs and
    # vcast keep a single frame whole.
    counted = {"sparsevlm": {"budget": "after_prune"}, **{name: {"exact": True} for name in ("dart", "evs", "vcast")}}
    model = PrunedModel(
        HarnessSettings.from_arguments(pretrained="pocket", method=method, keep=16, **counted.get(method, {}))
    )
    questions = list(samples("test", 2))
    answers = model.answer([ask(each.question, each.image) for each in questions])
    # Some releases keep a few tokens more or fewer than the budget.
    assert all(8 <= each.tokens <= 24 and each.tokens_before == 256 for each in answers)
    assert all(each.sent == each.tokens <= each.layer_mean <= 256 for each in answers)  # LLaVA has no newlines.
    assert all(each.generate_seconds > 0 for each in answers)


def test_beams_are_not_counted_as_prompts() -> None:
    model = PrunedModel(HarnessSettings.from_arguments(pretrained="pocket", method="uniform", keep=16))
    conversations = [ask(each.question, each.image) for each in samples("test", 3)]
    assert [each.tokens for each in model.answer(conversations, {"num_beams": 2})] == [16] * 3


def test_without_a_method_all_tokens_stay() -> None:
    questions = list(samples("test", 4))
    answers = PrunedModel(HarnessSettings.from_arguments(pretrained="pocket", method="none")).answer(
        [ask(each.question, each.image) for each in questions]
    )
    assert [each.tokens for each in answers] == [256] * 4
    assert sum(each.is_correct(answer.answer) for each, answer in zip(questions, answers, strict=True)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "patch", "resolution", "tokens"), [("qwen2_5_vl", 14, 1008, 1296), ("qwen3_vl", 16, 1024, 1024)]
)
def test_resolutions_of_the_paper_give_its_token_counts_for_any_image(
    monkeypatch: pytest.MonkeyPatch, family: str, patch: int, resolution: int, tokens: int
) -> None:
    kind, settings = tiny.CONFIGS[family]
    vision = dict(
        settings["vision_config"],
        patch_size=patch,
        spatial_merge_size=2,
        depth=1,
        window_size=112,
        deepstack_visual_indexes=[],
    )
    config = kind(**dict(settings, vision_config=vision))
    torch.manual_seed(0)
    model = hf.AutoModelForImageTextToText.from_config(config).eval()
    processor = type(tiny.processor(family))(
        hf.Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2),
        tiny.tokenizer(),
        chat_template=tiny_template(family),
    )
    monkeypatch.setattr(pruned_model, "load_model", lambda name, **options: (model, processor))
    fixed = PrunedModel(HarnessSettings.from_arguments(pretrained=family, keep=256, resolution=resolution))
    wide = [ask("what is it?", make_image(300, 800)), ask("what is it?", make_image(64, 64))]
    assert [(each.tokens_before, each.tokens) for each in fixed.answer(wide, {"max_new_tokens": 1})] == [
        (tokens, 256)
    ] * 2


def tiny_template(family: str) -> str:
    return tiny.processor(family).chat_template


def test_without_a_resolution_images_keep_their_size(tiny_model: Any) -> None:
    model = tiny_model("qwen3_vl", method="none")
    assert [
        each.tokens
        for each in model.answer([ask("?", make_image(40, 64)), ask("?", make_image(16, 24))], {"max_new_tokens": 1})
    ] == [40, 6]


def test_unsupported_resolution_is_an_error(tiny_model: Any) -> None:
    with pytest.raises(
        ValueError, match=r"covers 8×8 pixels, so resolution must be a multiple of 8, such as 32, got 30"
    ):
        tiny_model("qwen3_vl", keep=4, resolution=30)
    with pytest.raises(ValueError, match=r"llava_next cannot cut a square of resolution=30 into crops: use one of 56"):
        tiny_model("llava_next", method="uniform", keep=4, resolution=30)
    with pytest.raises(ValueError, match=r"resolution= is for Qwen2.5-VL and Qwen3-VL"):
        tiny_model("llava", method="uniform", keep=4, resolution=336)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "fastest"}, "unknown method 'fastest'; known: "),
        ({"keep": 8, "nu": 1}, "eadp has no setting nu; it has .*tau"),
        ({}, "EADP needs keep="),
        ({"method": "none", "keep": 8}, "method=none keeps all tokens and has no settings: leave out keep"),
        ({"keep": 8, "frames": 0}, "frames must be at least 1"),
        ({"keep": 8, "square": "crop"}, "square must be one of stretch, pad, crops, got 'crop'"),
        ({"keep": 8, "question": "short"}, "question must be one of harness, released, got 'short'"),
        ({"keep": 8, "square": "pad", "pad_colour": "greyish"}, "pad_colour must be mean, or a colour such as black"),
        ({"keep": 8, "pad_colour": "black"}, "pad_colour=black needs square=pad"),
        ({"keep": 8, "positions": "repack"}, "positions must be one of keep, renumber, got 'repack'"),
        ({"keep": 8, "unpad": "no"}, "unpad must be one of True, False, got 'no'"),
    ],
)
def test_wrong_settings_are_errors_before_anything_is_loaded(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HarnessSettings.from_arguments(pretrained="nowhere", **arguments)


def test_images_become_squares_stretched_or_padded() -> None:
    red = Image.new("RGB", (40, 20), "red")
    stretched = media.load_image(red, media.Square(10))
    assert (stretched.size, stretched.getcolors()) == ((10, 10), [(100, (255, 0, 0))])
    padded = media.load_image(red, media.Square(None, (0, 0, 255)))
    assert padded.size == (40, 40)
    assert {row: padded.getpixel((0, row)) for row in (0, 9, 10, 29, 30, 39)} == {
        **dict.fromkeys((0, 9, 30, 39), (0, 0, 255)),
        **dict.fromkeys((10, 29), (255, 0, 0)),
    }
    small = media.load_image(red.rotate(90, expand=True), media.Square(8, (0, 0, 255)))
    assert small.size == (8, 8)
    assert [small.getpixel((column, 4)) for column in (0, 4, 7)] == [(0, 0, 255), (255, 0, 0), (0, 0, 255)]


def test_padding_has_the_mean_colour_of_the_processor_or_the_given_one(tiny_model: Any) -> None:
    processor = tiny.processor("qwen3_vl")
    mean = [int(255 * share) for share in processor.image_processor.image_mean]
    model = tiny_model("qwen3_vl", method="none", resolution=32, square="pad")
    assert model._square == (32, tuple(mean))
    assert [each.tokens for each in model.answer([ask("?", make_image(40, 16))], {"max_new_tokens": 1})] == [16]
    assert tiny_model("llava", method="none", square="pad", pad_colour="#102030")._square == (None, (16, 32, 48))


@pytest.mark.parametrize("square", ["stretch", "pad", "crops"])
def test_llava_next_cuts_all_images_into_the_same_crops(tiny_model: Any, square: str) -> None:
    model = tiny_model("llava_next", method="divprune", keep=8, newlines="none", resolution=56, square=square)
    wide = [ask("?", make_image(20, 90)), ask("?", make_image(64, 30))]
    answers = model.answer(wide, {"max_new_tokens": 1})
    assert [(each.tokens, each.tokens_before) for each in answers] == [(8, 5 * 16)] * 2


@pytest.mark.parametrize(("newlines", "stay"), [("none", 0), ("all", 8)])
def test_newlines_that_stay_are_sent_but_not_kept(tiny_model: Any, newlines: str, stay: int) -> None:
    model = tiny_model("llava_next", method="uniform", keep=6, newlines=newlines, resolution=56)
    (answer,) = model.answer([ask("?", make_image(56, 56))], {"max_new_tokens": 1})
    assert (answer.tokens, answer.sent, answer.tokens_before) == (6, 6 + stay, 80)


def test_positions_of_kept_tokens_can_be_set(tiny_model: Any) -> None:
    answers = {}
    for positions in ("keep", "renumber"):
        model = tiny_model("qwen2_5_vl", method="uniform", keep=4, positions=positions)
        answers[positions] = model.answer([ask("where is it?", make_image(40, 64))], {"max_new_tokens": 8})[0].answer
        model.detach()
    assert answers["keep"] != answers["renumber"]


SHORT = "Answer the question using a single word or phrase."


@pytest.mark.parametrize(
    ("question", "shortened"),
    [
        (f"What colour is it?\n{SHORT}", "What colour is it?"),
        (f"Is it red? {SHORT}", "Is it red?"),
        (f"If you cannot tell, say so.\nIs it red?\n{SHORT}\n", "If you cannot tell, say so.\nIs it red?"),
        ("Answer with the option's letter.", "Answer with the option's letter."),
    ],
)
def test_request_for_a_short_answer_is_removed(question: str, shortened: str) -> None:
    assert remove_short_answer_request(question) == shortened


@pytest.mark.parametrize(("question", "guides"), [("harness", f"what is it?\n{SHORT}"), ("released", "what is it?")])
def test_model_reads_the_full_prompt_whatever_guides_pruning(
    tiny_model: Any, monkeypatch: pytest.MonkeyPatch, question: str, guides: str
) -> None:
    model = tiny_model("qwen2_5_vl", keep=4, question=question)
    guide, read, given = model._pruned.guide, [], []
    encode, generate = guide.encode, model.model.generate
    monkeypatch.setattr(guide, "encode", lambda text, *how: read.append(text) or encode(text, *how))
    monkeypatch.setattr(model.model, "generate", lambda **inputs: given.append(inputs) or generate(**inputs))
    model.answer([ask(f"what is it?\n{SHORT}", make_image(40, 64))], {"max_new_tokens": 1})
    assert read == [guides]
    assert SHORT in model.processor.decode(given[0]["input_ids"][0])


def test_name_of_a_folder_shows_what_is_not_a_default() -> None:
    usual = HarnessSettings.from_arguments(pretrained="Qwen/Qwen2.5-VL-7B", method="uniform", keep=64)
    assert usual.name == "Qwen2.5-VL-7B-uniform-keep64"
    other = HarnessSettings.from_arguments(
        pretrained="/models/qwen", method="uniform", keep=0.5, resolution=1008, square="pad", question="released"
    )
    assert other.name == "qwen-uniform-keep0.5-resolution1008-squarepad-questionreleased"


def test_frames_of_a_video_are_evenly_spaced() -> None:
    frames = [Image.new("RGB", (4, 4), (value, 0, 0)) for value in range(100)]
    taken = load_clip(frames, 5)
    assert taken.frames[:, 0, 0, 0].tolist() == [0, 25, 50, 74, 99]
    assert list(taken.metadata.frames_indices) == [0, 25, 50, 74, 99]
    assert len(load_clip(frames[:3], 5).frames) == 3
    assert spread_evenly(10, 13, 64).tolist() == [10, 11, 12]
    with pytest.raises(ValueError, match="a video must be a path or a sequence of frames"):
        load_clip(np.zeros((0, 4, 4, 3)), 5)


class Counting:
    """A fake model that answers with the question and the options, and counts its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def answer(self, conversations: list[Any], generation: dict[str, Any]) -> list[pruned_model.Answer]:
        self.batches.append(len(conversations))
        return [
            pruned_model.Answer(f"{each} {generation}", 2, 3, 8, 2.0, 1, 0.5, 1.5, len(conversations))
            for each in conversations
        ]


def requests(count: int, generation: dict[str, Any]) -> list[EvalRequest]:
    return [EvalRequest(f"task/{number}", "task", lambda number=number: number, generation) for number in range(count)]


def test_answers_in_the_journal_are_not_generated_again(tmp_path: Any) -> None:
    first, second = Counting(), Counting()
    with Journal.open(tmp_path, {}) as journal:
        known = JournaledModel(first, journal).answer(requests(5, {}), batch=2)
    with Journal.open(tmp_path, {}) as journal:
        journaled = JournaledModel(second, journal)
        assert journaled.answer(requests(7, {}), batch=4)[:5] == known
        assert journaled.new_keys == {"task/5", "task/6"}
    assert (first.batches, second.batches) == ([2, 2, 1], [2])


def test_requests_with_other_generation_options_are_answered_separately() -> None:
    model = Counting()
    both = [*requests(2, {"max_new_tokens": 1}), *(EvalRequest(f"b/{n}", "b", lambda: 0, {}) for n in range(3))]
    answers = JournaledModel(model).answer(both, batch=8)
    assert model.batches == [2, 3]
    assert [each["answer"] for each in answers] == ["0 {'max_new_tokens': 1}", "1 {'max_new_tokens': 1}", *["0 {}"] * 3]


def test_summary_has_settings_tokens_and_times(tmp_path: Any) -> None:
    journaled = JournaledModel(Counting())
    records = journaled.answer(requests(4, {}), batch=2)
    settings = HarnessSettings.from_arguments(pretrained="pocket", method="pyramiddrop", keep=16, layers="[8,16]")
    summary, lines = write_summary(tmp_path, settings, records, 4, "a harness")
    found = json.loads(summary.read_text())
    assert found["settings"]["options"] == {"keep": 16, "layers": [8, 16]}
    assert found["harness"] == "a harness"
    assert (found["tokens"], found["sent"], found["tokens_before"], found["generate_seconds"]) == (2, 3, 8, 6.0)
    assert {json.loads(line)["sent"] for line in lines.read_text().splitlines()} == {3}
    assert found["tasks"]["task"]["samples"] == 4
    assert [json.loads(line)["key"] for line in lines.read_text().splitlines()] == [f"task/{n}" for n in range(4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "POPE", "--model", "pocket"], "VLMEvalKit is not installed here"),
        (["--data", ",", "--model", "pocket"], "give at least one data set"),
    ],
)
def test_vlmeval_command_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setitem(sys.modules, "vlmeval", None)
    result = CliRunner().invoke(app, ["vlmeval", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
