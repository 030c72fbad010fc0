"""Questions, captions and clips of the world of things: answers are derived a second time, from text and geometry."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from math import dist

import numpy as np
import pytest

from eadp.pocket.things import wording
from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.captions import make_caption, window_view
from eadp.pocket.things.clips import EVENTS, LONGEST, SHORTEST, make_clip
from eadp.pocket.things.questions import KINDS, make_question
from eadp.pocket.things.render import render
from eadp.pocket.things.samples import QUESTIONS_PER_SCENE, samples, scene_samples
from eadp.pocket.things.scene import SIDE, SIGN, SMALL, WORDS, Scene, Thing, make_scene
from eadp.pocket.things.view import View, name_of

SCENES = 150
NAMES = {kind.name for kind in kinds()} | {f"{colour} sign" for colour in ("red", "yellow", "green", "blue")}
NAMES |= {"white sign", "black sign"}
PLURALS = {wording.plural(kind.name): kind.name for kind in kinds()}
MENTION = re.compile(rf"\b({'|'.join(sorted(NAMES | set(PLURALS), key=len, reverse=True))})\b")
INSTRUCTIONS = re.compile("|".join(map(re.escape, (*wording.BEFORE, *wording.AFTER))))


@pytest.fixture(scope="module")
def views():
    scenes = [make_scene("validation", index) for index in range(SCENES)]
    return [View(scene, render(scene).visible) for scene in scenes]


@pytest.fixture(scope="module")
def questions(views):
    """Questions by kind, each with the things of its scene that are not hidden."""
    made = {kind: [] for kind in KINDS}
    for number, view in enumerate(views):
        rng = np.random.default_rng((8, number))
        for kind in KINDS:
            question = make_question(view, rng, kind)
            if question is not None:
                made[kind].append((view, question))
    return made


def core(text: str) -> str:
    """Return the question without the instructions around it."""
    return INSTRUCTIONS.sub("", text).strip()


def named(view: View, text: str) -> list[list[Thing]]:
    """Return, for every name in a text, the things of the scene that have it."""
    names = [PLURALS.get(match, match) for match in MENTION.findall(text)]
    return [[thing for thing in view.things if name_of(thing) == name] for name in names]


def shown(view: View) -> list[Thing]:
    return [view.things[index] for index in view.noticed]


def of_group(things: list[Thing], text: str) -> list[Thing]:
    """Return the things of the category that a question asks for."""
    groups = sorted(wording.GROUPS.values(), key=lambda group: -len(group[0]))
    categories = next(categories for one, many, categories in groups if re.search(rf"\b({one}|{many})\b", text))
    return [thing for thing in things if thing.category in categories]


def furthest(things: list[Thing], text: str) -> Thing:
    side = next(side for side, words in wording.PLACES.items() if any(word in text for word in words))
    key = {
        "left": lambda thing: thing.centre[0],
        "right": lambda thing: -thing.centre[0],
        "top": lambda thing: thing.centre[1],
        "bottom": lambda thing: -thing.centre[1],
    }[side]
    return min(things, key=key)


def direction(text: str) -> str:
    return next(word for word in ("left", "right", "above", "below") if wording.DIRECTIONS[word] in text)


def towards(anchor: Thing, where: str, others: list[Thing]) -> list[Thing]:
    """Return the things of which the direction from an anchor is mainly left, right, up or down."""
    found = []
    for other in others:
        across, down = (other.centre[axis] - anchor.centre[axis] for axis in (0, 1))
        main = ("left" if across < 0 else "right") if abs(across) > abs(down) else ("above" if down < 0 else "below")
        if main == where and abs(across) != abs(down):
            found.append(other)
    return found


def derive(view: View, kind: str, text: str) -> str:
    """Derive the answer from the text and the things alone."""
    text = core(text)
    things = named(view, text)
    match kind:
        case "existence" | "small" if things:
            return "yes" if things[0] else "no"
        case "small":
            return name_of(min((thing for thing in shown(view) if thing.kind != SIGN), key=lambda thing: thing.size))
        case "count":
            return str(len(things[0] if things else of_group(list(view.things), text)))
        case "side":
            x, y = things[0][0].centre
            return ("left", "right")[x > SIDE / 2] if "left" in text else ("top", "bottom")[y > SIDE / 2]
        case "relation":
            one, other = (found[0] for found in things)
            if text.startswith("Seen from"):
                one, other = other, one
            axis = 0 if "left" in text else 1
            answers = ("left", "right") if axis == 0 else ("above", "below")
            return answers[one.centre[axis] > other.centre[axis]]
        case "place":
            return name_of(furthest(shown(view), text))
        case "nearest":
            (anchor,) = things[0]
            others = [thing for thing in shown(view) if thing != anchor]
            return name_of(min(others, key=lambda thing: dist(thing.centre, anchor.centre)))
        case "direction":
            (anchor,) = things[0]
            others = towards(anchor, direction(text), [thing for thing in shown(view) if thing != anchor])
            return name_of(min(others, key=lambda thing: dist(thing.centre, anchor.centre)))
        case "between":
            (one,), (two,) = things
            others = [thing for thing in shown(view) if thing not in (one, two)]
            # A detour over the thing in between is the shortest.
            detour = {thing: dist(one.centre, thing.centre) + dist(thing.centre, two.centre) for thing in others}
            return name_of(min(detour, key=lambda thing: detour[thing]))
        case "odd":
            sorts = {"bird": "animal", "bug": "animal"}
            found = [thing for thing in view.things if thing.kind != SIGN]
            counts = Counter(sorts.get(thing.category, thing.category) for thing in found)
            return next(name_of(t) for t in found if counts[sorts.get(t.category, t.category)] == 1)
        case "group":
            members = of_group(shown(view), text)
            return name_of(members[0] if len(members) == 1 else furthest(members, text))
        case "reading":
            signs = [thing for thing in view.things if thing.kind == SIGN]
            return (things[0] if things else signs)[0].word
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "several"])
def test_answers_agree_with_the_scene(kind, questions):
    assert len(questions[kind]) > 25
    for view, question in questions[kind]:
        assert derive(view, kind, question.text) == question.answer, (question.text, view.scene.seed)


def test_several_questions_in_one_have_as_many_answers(questions):
    assert len(questions["several"]) > 25
    for _, question in questions["several"]:
        assert len(core(question.text).split(", and ")) == len(question.answer.split(", ")) in (2, 3)
        assert question.dense


def test_boxes_contain_all_that_a_question_names(questions):
    for kind in KINDS:
        for view, question in questions[kind]:
            about = {view.things[index] for index in question.about}
            present = [thing for things in named(view, core(question.text)) for thing in things]
            assert about.issuperset(present), question.text
            assert len(question.boxes(view.scene)) == len(question.about)
            assert about or question.answer == "no", question.text


def test_answers_are_short_and_known(questions):
    known = {*NAMES, *WORDS, "yes", "no", "left", "right", "top", "bottom", "above", "below", *"123456"}
    for kind in KINDS:
        for _, question in questions[kind]:
            assert set(question.answer.split(", ")) <= known


def test_small_questions_are_about_small_things(questions):
    asked = [(view, question) for view, question in questions["small"] if question.answer != "no"]
    assert len(asked) > 15
    assert all(min(view.things[i].size for i in question.about) < SMALL for view, question in asked)


def test_yes_and_no_are_balanced(views):
    makes = (make_question(view, np.random.default_rng((9, i)), "existence") for i, view in enumerate(2 * views))
    answers = [question.answer for question in makes if question is not None]
    assert 0.4 < answers.count("yes") / len(answers) < 0.6


def test_absent_things_are_mostly_near_misses(views):
    """Most absent things are of the category of a thing in the scene, or among the most similar in colour."""
    colours = np.array([kind.colour for kind in kinds()])
    near = total = 0
    for number, view in enumerate(views):
        question = make_question(view, np.random.default_rng((10, number)), "existence")
        if question is None or question.answer != "no":
            continue
        (name,) = MENTION.findall(core(question.text))
        absent = next(number for number, kind in enumerate(kinds()) if kind.name == name)
        present = [thing.kind for thing in view.things if thing.kind != SIGN]
        ranks = [
            np.abs(colours - colours[kind]).sum(1).argsort(kind="stable").tolist().index(absent) for kind in present
        ]
        near += any(kinds()[kind].category == kinds()[absent].category for kind in present) or min(ranks) <= 12
        total += 1
    assert total > 50
    assert near / total > 0.7


def test_every_kind_has_several_wordings(questions):
    for kind in KINDS:
        openings = {MENTION.sub("…", core(question.text))[:14] for _, question in questions[kind]}
        assert len(openings) >= 3, kind


def test_unknown_kinds_are_errors(views):
    with pytest.raises(ValueError, match="unknown kind of question 'smell'"):
        make_question(views[0], np.random.default_rng(0), "smell")
    with pytest.raises(ValueError, match="unknown kinds"):
        next(samples("test", 1, kinds=("smell",)))


def test_articles_and_plurals():
    assert [wording.with_article(name) for name in ("owl", "unicorn", "hourglass", "duck", "bread")] == [
        "an owl",
        "a unicorn",
        "an hourglass",
        "a duck",
        "bread",
    ]
    plurals = [wording.plural(name) for name in ("duck", "fox", "strawberry", "monkey", "knife", "church")]
    assert plurals == ["ducks", "foxes", "strawberries", "monkeys", "knives", "churches"]


def test_samples_are_the_same_every_time_and_kinds_take_turns():
    first, second = (list(samples("test", 2 * len(KINDS))) for _ in range(2))
    assert [(s.prompt, s.answer, s.boxes) for s in first] == [(s.prompt, s.answer, s.boxes) for s in second]
    assert [s.kind for s in first] == 2 * list(KINDS)
    assert max(len(list(group)) for _, group in groupby(first, key=lambda s: s.scene)) <= QUESTIONS_PER_SCENE


def test_captions_name_only_what_is_visible(views):
    for number, view in enumerate(views):
        caption = make_caption(view, np.random.default_rng((11, number)))
        clear = {name_of(thing) for thing in shown(view)}
        mentioned = {PLURALS.get(match, match) for match in MENTION.findall(caption[0].lower() + caption[1:])}
        assert mentioned <= clear, caption
    with pytest.raises(ValueError, match="at least one thing"):
        make_caption(View(Scene((), "plain", (1,)), ()), np.random.default_rng(0))


def test_a_window_is_a_scene_of_what_it_shows():
    scene = make_scene("validation", 2)
    drawing = render(scene)
    view = window_view(scene, drawing, 8, 4, 8)
    patches = drawing.owners.reshape(24, 24)[8:16, 4:12]
    indices = sorted({int(number) for number in patches.ravel()} - {-1})
    assert indices
    assert [thing.kind for thing in view.things] == [scene.things[index].kind for index in indices]
    assert [(thing.x + 32, thing.y + 64) for thing in view.things] == [
        (scene.things[index].x, scene.things[index].y) for index in indices
    ]


@pytest.mark.parametrize("event", EVENTS)
def test_clips_show_what_their_answer_says(event):
    clips = [clip for clip in (make_clip("test", index) for index in range(60)) if clip.event == event]
    assert len(clips) > 3
    for clip in clips:
        assert SHORTEST <= len(clip.frames) <= LONGEST
        assert len(clip.boxes) == len(clip.frames)
        first, last = ({name_of(thing) for thing in clip.frames[end].things} for end in (0, -1))
        if event == "moves":
            (name,) = MENTION.findall(clip.question)
            tracks = [next(t for t in frame.things if name_of(t) == name) for frame in clip.frames]
            across, down = tracks[-1].x - tracks[0].x, tracks[-1].y - tracks[0].y
            expected = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}[clip.answer]
            assert (np.sign(across), np.sign(down)) == expected
        elif event == "appears":
            assert last - first == {clip.answer}
        elif event == "leaves":
            assert first - last == {clip.answer}
        elif event == "changes":
            (name,) = MENTION.findall(clip.question[0].lower() + clip.question[1:])
            assert ({name}, {clip.answer}) in ((first - last, last - first), (last - first, first - last))
        else:
            signs = [thing for frame in clip.frames for thing in frame.things if thing.kind == SIGN]
            assert [sign.word for sign in signs if f"{sign.colour} sign" in clip.question] == 2 * [clip.answer]


def test_a_clip_of_a_wrong_length_is_an_error():
    with pytest.raises(ValueError, match="8 to 16 frames"):
        make_clip("test", 0, frames=4)


def test_questions_about_one_scene_take_turns():
    kinds = ("reading", "nearest", "between")
    asked = scene_samples("test", 11, 5, kinds, wrapped=0.0)
    assert [sample.kind for sample in asked] == ["reading", "nearest", "between", "reading", "nearest"]
    assert {sample.scene for sample in asked} == {11}
    assert asked == scene_samples("test", 11, 5, kinds, wrapped=0.0)
    assert all(len(sample.question.split()) < 15 for sample in asked)
