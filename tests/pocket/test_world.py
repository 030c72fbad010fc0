"""The pocket world: reproducible scenes, disjoint splits, correct boxes, and answers derived a second time."""

from __future__ import annotations

import re

import numpy as np
import pytest

from eadp.pocket.samples import samples
from eadp.pocket.world import (
    COLOURS,
    KINDS,
    SHAPES,
    SIDE,
    SPLITS,
    WRITINGS,
    Question,
    Scene,
    make_questions,
    make_scene,
    render,
)
from eadp.pocket.world.clips import DIRECTIONS, EVENTS, make_clip
from eadp.pocket.world.scene import FIGURES, PALETTE, SIGN


def scenes_with_questions(split="validation", scenes=60, questions=12):
    for index in range(scenes):
        scene = make_scene(split, index)
        for question in make_questions(scene, np.random.default_rng((5, index)), questions):
            yield scene, question


def test_a_scene_is_the_same_every_time():
    first, second = make_scene("test", 7), make_scene("test", 7)
    assert first == second
    assert np.array_equal(render(first)[0], render(second)[0])


def test_splits_share_no_scene():
    layouts = [{make_scene(split, index).things for index in range(500)} for split in SPLITS]
    assert all(len(split) == 500 for split in layouts)
    assert len(set.union(*layouts)) == 1500


def test_scenes_use_all_shapes_writings_and_backgrounds():
    scenes = [make_scene("train", index) for index in range(300)]
    assert len(COLOURS) >= 8
    assert len(FIGURES) >= 8
    assert all(2 <= len(scene.things) <= 8 for scene in scenes)
    assert {thing.shape for scene in scenes for thing in scene.things} == set(SHAPES)
    assert {thing.writing for scene in scenes for thing in scene.things} - {None} == set(WRITINGS)
    assert {scene.background for scene in scenes} == {"plain", "noisy", "striped", "photo"}


@pytest.mark.parametrize("index", range(20))
def test_a_box_contains_its_thing_in_its_colour(index):
    scene = make_scene("test", index)
    image, visible = render(scene)
    for thing, shown in zip(scene.things, visible, strict=True):
        top, left, bottom, right = (round(edge * SIDE) for edge in thing.box)
        outside = shown.copy()
        outside[max(top - 1, 0) : bottom + 1, max(left - 1, 0) : right + 1] = 0
        assert outside.max() == 0
        pixels = image[shown > 0.99]
        assert len(pixels) > 60, "most of a thing can be seen"
        nearest = np.abs(pixels[:, None].astype(int) - np.array(list(PALETTE.values()))).sum(-1).argmin(1)
        counts = np.bincount(nearest, minlength=len(COLOURS))
        if thing.shape == SIGN:  # The writing is black or white.
            counts[COLOURS.index("white")] *= thing.colour == "white"
        assert COLOURS[counts.argmax()] == thing.colour


def derive_answer(scene: Scene, question: Question) -> str:
    """Derive the answer from the text and the scene alone."""
    text = re.sub(r".*\.\s(?=[A-Z][^.]*[.?]?$)", "", question.text) if question.kind == "double" else question.text
    colour, shape = "|".join(COLOURS), "|".join(SHAPES)
    named = [
        [t for t in scene.things if c in ("", t.colour) and s in ("thing", t.shape)]
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
def test_answers_agree_with_the_scene(kind):
    cases = [(scene, question) for scene, question in scenes_with_questions() if question.kind == kind]
    assert len(cases) > 30
    for scene, question in cases:
        assert derive_answer(scene, question) == question.answer, question.text


def test_a_double_question_has_two_answers():
    doubles = [question for _, question in scenes_with_questions() if question.kind == "double"]
    assert doubles
    known = {*COLOURS, *SHAPES, *WRITINGS, "yes", "no", "left", "right", "top", "bottom"}
    for question in doubles:
        first, second = question.answer.split(", ")
        assert {first, second} <= known
        assert ", and " in question.text


def test_pointers_mark_words_that_name_their_things():
    for scene, question in scenes_with_questions():
        assert question.pointers
        for start, end, things in question.pointers:
            word = question.text[start:end]
            for number in things:
                thing = scene.things[number]
                assert word in (thing.colour, "thing") or word.startswith(thing.shape)


def test_yes_and_no_are_balanced():
    answers = [question.answer for _, question in scenes_with_questions(scenes=300) if question.kind == "existence"]
    assert 0.4 < answers.count("yes") / len(answers) < 0.6


def test_samples_are_the_same_every_time_and_kinds_take_turns():
    first, second = (list(samples("test", 3 * len(KINDS))) for _ in range(2))
    assert [(s.prompt, s.answer, s.boxes) for s in first] == [(s.prompt, s.answer, s.boxes) for s in second]
    assert [s.kind for s in first] == 3 * list(KINDS)
    assert all(s.boxes or s.answer.startswith("no") or ", " in s.answer for s in first)


def test_spaces_and_capitals_do_not_matter_for_a_correct_answer():
    (sample,) = samples("test", 1, kinds=("colour",))
    assert sample.is_correct(f" {sample.answer.upper()}. ")
    assert not sample.is_correct(f"{sample.answer} {sample.answer}")


def test_unknown_splits_and_kinds_are_errors():
    with pytest.raises(ValueError, match="split must be one of train, validation, test"):
        make_scene("dev", 0)
    with pytest.raises(ValueError, match="unknown kinds"):
        next(samples("test", 1, kinds=("smell",)))


def test_only_one_thing_of_a_clip_changes():
    clips = [make_clip("test", index) for index in range(40)]
    assert {made.event for made in clips} == set(EVENTS)
    for made in clips:
        assert all(frame.things[: made.actor] == made.frames[0].things[: made.actor] for frame in made.frames)
        first, last = made.frames[0].things[made.actor :], made.frames[-1].things[made.actor]
        if made.event == "moves":
            shift = np.sign((last.x - first[0].x, last.y - first[0].y))
            assert tuple(shift) == DIRECTIONS[made.answer]
        elif made.event == "appears":
            assert not first
            assert made.answer == f"{last.colour} {last.shape}"
        else:
            assert first[0].colour != last.colour == made.answer
        assert all(render(frame)[0].shape == (SIDE, SIDE, 3) for frame in made.frames[:2])
        assert made.boxes[-1] == last.box


def test_a_clip_of_one_frame_is_an_error():
    with pytest.raises(ValueError, match="at least two frames"):
        make_clip("test", 0, frames=1)
