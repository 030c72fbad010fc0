"""`eadp eval photo`: what is asked about photographs, how answers are judged, and the run from the command line."""

from __future__ import annotations

import json
from collections import Counter
from importlib import util

import pytest
import torch
from helpers import tiny, tiny_photo
from helpers.synthetic import synthetic_image
from transformers import BatchFeature
from typer.testing import CliRunner

from eadp.cli import app
from eadp.evaluate import photo_questions, pocket_benchmark
from eadp.evaluate.photo_data import Photo, PhotoData
from eadp.evaluate.photo_questions import ABSENT, NAMING, PhotoQuestion, make_questions, select_specs
from eadp.method_spec import ALL_TOKENS, MethodSpec, build_specs
from eadp.models.guides.class_words import class_words
from eadp.pocket.names import PHOTO

NAMES = class_words().names


def photo(word, classes=None):
    found = class_words().classes_of(word).keys() if classes is None else classes
    return Photo("stamps", f"{word}.png", synthetic_image(32), word, frozenset(found))


ZEBRA, BEARS, CAT = photo("zebra"), photo("polar bears"), photo("cat")
PHOTOS = [ZEBRA, BEARS, CAT, photo("jeep"), photo("goldfish"), photo("strawberry")]


def asked_words(question):
    """The classes of the thing that a question is about, without the verb "can", which may be a tin."""
    read = class_words().read(question.question.removeprefix("Can "))
    return set().union(*(word.classes.keys() for word in read))


def test_the_same_questions_are_asked_every_time():
    first = list(make_questions(PHOTOS))
    assert first == list(make_questions(PHOTOS))
    assert [each.kind for each in first[: len(PHOTOS)]] == [NAMING] * len(PHOTOS)
    assert len({each.question for each in first[: len(PHOTOS)]}) > 1


def test_as_much_is_asked_about_what_is_there_as_about_what_is_not():
    existence = [each for each in make_questions(PHOTOS) if each.kind != NAMING]
    for one in PHOTOS:
        answers = Counter(each.answer for each in existence if each.photo is one)
        assert answers["yes"] == answers["no"] >= 2
    first_round = Counter(each.answer for each in existence[: len(PHOTOS)])
    assert first_round == {"yes": len(PHOTOS) / 2, "no": len(PHOTOS) / 2}


def test_what_is_asked_for_is_there_if_the_answer_is_yes_and_of_the_family_if_it_is_no():
    animals = class_words().classes_of("animal").keys()
    for each in make_questions(PHOTOS):
        if each.kind == ABSENT:
            assert asked_words(each).isdisjoint(each.photo.classes), each.question
            if each.photo in (ZEBRA, BEARS, CAT):
                assert asked_words(each) <= animals, each.question
        elif each.kind != NAMING:
            assert asked_words(each) >= each.photo.classes, each.question


def test_a_name_is_in_the_singular():
    names = [each.question for each in make_questions([BEARS]) if each.kind == photo_questions.NAME]
    assert len(names) == 1
    assert "bears" not in names[0]


def test_a_photograph_of_a_thing_without_family_is_only_named():
    alone = photo("everything", range(len(NAMES)))
    assert [each.kind for each in make_questions([alone])] == [NAMING]


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [("A zebra.", True), ("an equine", True), ("animal", True), ("object", False), ("horse", False), ("", False)],
)
def test_naming_is_judged_by_words_that_are_not_too_wide(answer, is_right):
    assert PhotoQuestion(ZEBRA, "What is this?", "zebra", NAMING).is_correct(answer) is is_right


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [("Yes.", True), ("yes, there is no doubt", True), ("No", False), ("zebra", False), ("", False)],
)
def test_yes_and_no_are_read_from_the_first_word(answer, is_right):
    assert PhotoQuestion(ZEBRA, "Is there a zebra?", "yes", photo_questions.NAME).is_correct(answer) is is_right


def test_methods_by_attention_are_left_out_of_the_zoo_and_refused_by_name():
    specs = build_specs(["zoo"], [4])
    kept, left_out = select_specs(specs, ["zoo"], PHOTO)
    assert {"visionzip", "hiprune"} <= set(left_out)
    assert {"eadp", "divprune", "topk"} <= {spec.method for spec in kept}
    assert not {spec.method for spec in kept} & set(left_out)
    assert select_specs(specs, ["zoo"], "a/checkpoint") == (specs, [])
    with pytest.raises(ValueError, match="visionzip needs the attention of the vision tower"):
        select_specs(build_specs(["eadp", "visionzip"], [4]), ["eadp", "visionzip"], PHOTO)


@pytest.fixture
def little_model(monkeypatch, tmp_path):
    """The tiny model for photographs in place of `photo`, and six photographs in place of those of three packages."""
    weights = tmp_path / "checkpoint"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(pocket_benchmark, "checkpoint", lambda name: weights)
    monkeypatch.setattr(pocket_benchmark, "load_model", lambda name: (tiny_photo.model(), tiny.processor("llava")))
    monkeypatch.setattr(pocket_benchmark, "build_inputs", little_inputs)
    monkeypatch.setattr(PhotoData, "find", lambda stamps: PhotoData(tmp_path, tmp_path, tmp_path))
    monkeypatch.setattr(PhotoData, "photos", lambda self: iter(PHOTOS))


def little_inputs(processor, images, questions):
    made = tiny_photo.inputs(seed=len(questions[0]))
    return BatchFeature({name: torch.cat([value] * len(images)) for name, value in made.items()})


def run(*arguments):
    return CliRunner().invoke(app, ["eval", "photo", *arguments], env={"COLUMNS": "200"})


def test_a_run_writes_accuracy_by_kind_with_intervals_and_is_continued(little_model, tmp_path):
    out = tmp_path / "out"
    result = run("--methods", "zoo", "--keep", "4", "--samples", "9", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "left out, because they need the attention of a vision tower" in " ".join(result.output.split())
    results = json.loads((out / "results.json").read_text())
    assert (results["benchmark"], results["model"], results["questions"]) == ("photographs", "photo", 9)
    methods = {each["method"] for each in results["outcomes"]}
    assert {ALL_TOKENS, "blind", "eadp", "divprune", "downsample", "fastv"} <= methods
    assert "visionzip" not in methods
    eadp = next(each for each in results["outcomes"] if each["method"] == "eadp")
    assert eadp["mean_tokens"] == 4
    for kind, (low, high) in eadp["intervals_by_kind"].items():
        assert 0 <= low <= eadp["by_kind"][kind] <= high <= 1
    table = (out / "table.md").read_text()
    assert "naming" in table
    assert "–" in table.splitlines()[2].split("|")[-2]
    before = (out / "samples.jsonl").read_text()
    again = run("--methods", "eadp", "--keep", "4", "--samples", "9", "--out", str(out))
    assert again.exit_code == 0, again.output
    assert (out / "samples.jsonl").read_text() == before


def test_other_photographs_need_another_folder(little_model):
    settings = photo_questions.journal_settings(PHOTO, PHOTOS)
    assert settings["benchmark"] == "photographs"
    assert settings != photo_questions.journal_settings(PHOTO, PHOTOS[1:])


def test_missing_photographs_and_misplaced_options_are_errors_with_a_remedy(tmp_path, monkeypatch):
    result = run("--stamps", str(tmp_path))
    assert result.exit_code == 2
    assert "tuxpaint-stamps-default" in result.output
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    assert "photo runs without a harness: leave out --only" in " ".join(run("--only", "GQA").output.split())
    pocket = CliRunner().invoke(app, ["eval", "pocket", "--stamps", "x"], env={"COLUMNS": "200"})
    assert "--stamps is for the suite photo" in pocket.output


def test_questions_of_any_kind_can_be_asked(little_model):
    questions = [PhotoQuestion(ZEBRA, "What is this?", "zebra", NAMING)] * 3
    report = pocket_benchmark.ask([MethodSpec("eadp", 4)], questions, 3, "photographs", model=PHOTO, batch=2)
    assert report.outcomes[0].tokens == [4, 4, 4]
    assert report.expected == ["zebra"] * 3
