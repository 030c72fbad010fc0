"""The pocket world: seeded, disjoint splits, boxes that hold what they say, answers that can be worked out again."""

from __future__ import annotations

import re

import numpy as np
import pytest

from eadp.pocket.samples import samples
from eadp.pocket.world import COLOURS, KINDS, SHAPES, SIDE, SPLITS, WRITINGS, Question, Scene, ask_many, render, scene
from eadp.pocket.world.clips import EVENTS, WAYS, clip
from eadp.pocket.world.scene import FIGURES, PALETTE, SIGN


def asked(split="validation", scenes=60, questions=12):
    for index in range(scenes):
        of = scene(split, index)
        for question in ask_many(of, np.random.default_rng((5, index)), questions):
            yield of, question


def test_a_scene_is_the_same_every_time():
    first, second = scene("test", 7), scene("test", 7)
    assert first == second
    assert np.array_equal(render(first)[0], render(second)[0])


def test_splits_share_no_scene():
    layouts = [{scene(split, index).things for index in range(500)} for split in SPLITS]
    assert all(len(split) == 500 for split in layouts)
    assert len(set.union(*layouts)) == 1500


def test_the_world_is_as_rich_as_it_says():
    scenes = [scene("train", index) for index in range(300)]
    assert len(COLOURS) >= 8
    assert len(FIGURES) >= 8
    assert all(2 <= len(of.things) <= 8 for of in scenes)
    assert {thing.shape for of in scenes for thing in of.things} == set(SHAPES)
    assert {thing.writing for of in scenes for thing in of.things} - {None} == set(WRITINGS)
    assert {of.background for of in scenes} == {"plain", "noisy", "striped", "photo"}


@pytest.mark.parametrize("index", range(20))
def test_a_box_holds_its_thing_in_its_colour(index):
    of = scene("test", index)
    image, visible = render(of)
    for thing, shown in zip(of.things, visible, strict=True):
        top, left, bottom, right = (round(edge * SIDE) for edge in thing.box)
        outside = shown.copy()
        outside[max(top - 1, 0) : bottom + 1, max(left - 1, 0) : right + 1] = 0
        assert outside.max() == 0
        pixels = image[shown > 0.99]
        assert len(pixels) > 60, "most of a thing can be seen"
        nearest = np.abs(pixels[:, None].astype(int) - np.array(list(PALETTE.values()))).sum(-1).argmin(1)
        others = np.bincount(nearest, minlength=len(COLOURS))
        if thing.shape == SIGN:  # its ink is black or white
            others[COLOURS.index("white")] *= thing.colour == "white"
        assert COLOURS[others.argmax()] == thing.colour


def worked_out(of: Scene, question: Question) -> str:
    """The answer again, from the text and the scene alone."""
    text = re.sub(r".*\.\s(?=[A-Z][^.]*[.?]?$)", "", question.text) if question.kind == "double" else question.text
    colour, shape = "|".join(COLOURS), "|".join(SHAPES)
    named = [
        [t for t in of.things if c in ("", t.colour) and s in ("thing", t.shape)]
        for c, s in re.findall(rf"\b({colour}|) ?\b({shape}|thing)(?:e?s)?\b(?! that| there)", text)
        if c or s != "thing"
    ]
    it = named[0][0] if named[0] else None
    match question.kind:
        case "existence":
            return "yes" if it else "no"
        case "colour":
            return it.colour
        case "shape":
            return it.shape
        case "count":
            return str(len(named[0]))
        case "reading":
            return it.writing
        case "side":
            across = "left" in text
            return ("left", "right")[it.x > SIDE / 2] if across else ("top", "bottom")[it.y > SIDE / 2]
        case "relation":
            other = named[1][0]
            across = "left" in text
            return ("left", "right")[it.x > other.x] if across else ("above", "below")[it.y > other.y]
    raise AssertionError(question.kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "double"])
def test_answers_can_be_worked_out_from_the_scene(kind):
    cases = [(of, question) for of, question in asked() if question.kind == kind]
    assert len(cases) > 30
    for of, question in cases:
        assert worked_out(of, question) == question.answer, question.text


def test_a_double_question_has_two_answers():
    doubles = [question for _, question in asked() if question.kind == "double"]
    assert doubles
    known = {*COLOURS, *SHAPES, *WRITINGS, "yes", "no", "left", "right", "top", "bottom"}
    for question in doubles:
        first, second = question.answer.split(", ")
        assert {first, second} <= known
        assert ", and " in question.text


def test_pointers_mark_words_that_name_their_things():
    for of, question in asked():
        assert question.pointers
        for start, end, things in question.pointers:
            word = question.text[start:end]
            for number in things:
                thing = of.things[number]
                assert word in (thing.colour, "thing") or word.startswith(thing.shape)


def test_yes_and_no_are_balanced():
    answers = [question.answer for _, question in asked(scenes=300) if question.kind == "existence"]
    assert 0.4 < answers.count("yes") / len(answers) < 0.6


def test_samples_are_the_same_every_time_and_every_kind_has_its_turn():
    first, second = (list(samples("test", 3 * len(KINDS))) for _ in range(2))
    assert [(s.prompt, s.answer, s.boxes) for s in first] == [(s.prompt, s.answer, s.boxes) for s in second]
    assert [s.kind for s in first] == 3 * list(KINDS)
    assert all(s.boxes or s.answer.startswith("no") or ", " in s.answer for s in first)


def test_an_answer_is_right_whatever_its_spaces_and_capitals():
    (sample,) = samples("test", 1, kinds=("colour",))
    assert sample.right(f" {sample.answer.upper()}. ")
    assert not sample.right(f"{sample.answer} {sample.answer}")


def test_unknown_splits_and_kinds_are_refused():
    with pytest.raises(ValueError, match="split must be one of train, validation, test"):
        scene("dev", 0)
    with pytest.raises(ValueError, match="unknown kinds"):
        next(samples("test", 1, kinds=("smell",)))


def test_in_a_clip_one_thing_acts_and_the_rest_stays():
    clips = [clip("test", index) for index in range(40)]
    assert {made.event for made in clips} == set(EVENTS)
    for made in clips:
        assert all(frame.things[: made.actor] == made.frames[0].things[: made.actor] for frame in made.frames)
        first, last = made.frames[0].things[made.actor :], made.frames[-1].things[made.actor]
        if made.event == "moves":
            shift = np.sign((last.x - first[0].x, last.y - first[0].y))
            assert tuple(shift) == WAYS[made.answer]
        elif made.event == "appears":
            assert not first
            assert made.answer == f"{last.colour} {last.shape}"
        else:
            assert first[0].colour != last.colour == made.answer
        assert all(render(frame)[0].shape == (SIDE, SIDE, 3) for frame in made.frames[:2])
        assert made.boxes[-1] == last.box


def test_a_clip_of_one_frame_is_refused():
    with pytest.raises(ValueError, match="at least two frames"):
        clip("test", 0, frames=1)
