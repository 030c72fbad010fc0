"""The atlas and the scenes of things: names, styles, reproducible pixels, disjoint splits, and true patch labels."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from eadp.pocket.things import atlas
from eadp.pocket.things.atlas import HANDS, STYLES, kinds, picture, writing
from eadp.pocket.things.render import GRID, PATCH, crop_five, render
from eadp.pocket.things.scene import (
    GROUNDS,
    LARGE_SIDE,
    LARGEST,
    MOST_THINGS,
    SIDE,
    SIGN,
    SMALL,
    SMALLEST,
    SPLITS,
    WORDS,
    Scene,
    Thing,
    make_scene,
    sprite,
)


def test_the_atlas_has_enough_things_and_is_small():
    names = [kind.name for kind in kinds()]
    assert len(names) == len(set(names)) >= 256
    assert all(len(name.split()) <= 2 for name in names)
    assert sum(file.stat().st_size for file in atlas.FOLDER.iterdir() if file.is_file()) < 4e6


def test_no_name_ends_with_another_name():
    """Else "Is there a car?" would have two answers for a scene with a police car."""
    names = [kind.name for kind in kinds()]
    assert not [(one, two) for one in names for two in names if one != two and one.endswith(f" {two}")]


def test_every_fifth_thing_has_a_hand_that_training_never_shows():
    held_out = [kind.held_out for kind in kinds()]
    assert sum(map(bool, held_out)) == len(held_out) // 5
    assert set(held_out) == {(), *HANDS}
    assert all(len(kind.styles) >= 2 for kind in kinds())


def test_the_styles_of_a_thing_are_different_pictures():
    for number in range(0, len(kinds()), 40):
        small = [picture(number, style).resize((16, 16)).tobytes() for style in STYLES]
        assert len(set(small)) == len(STYLES)


def test_the_fonts_of_a_word_are_different_pictures():
    assert len({writing("STOP", font).tobytes() for font in range(atlas.font_count())}) == atlas.font_count() >= 4


def test_letters_and_fonts_that_do_not_exist_are_errors():
    with pytest.raises(ValueError, match="capital letters and digits only"):
        writing("é", 0)
    with pytest.raises(ValueError, match="fonts are numbered"):
        writing("A", 99)
    with pytest.raises(ValueError, match="the styles are noto"):
        picture(0, "oil")


def test_scenes_have_the_same_pixels_on_every_machine():
    digest = hashlib.sha256()
    for index in range(12):
        digest.update(render(make_scene("test", index)).pixels.tobytes())
    assert digest.hexdigest() == "fbaf1d6597d89c6f2a5694a50c76206a979936c39a57b1d0a3ce811e78e85bd5"


def test_splits_share_no_scene():
    layouts = [{make_scene(split, index).things for index in range(100)} for split in SPLITS]
    assert len(set.union(*layouts)) == 300


def test_scenes_have_the_sizes_and_grounds_that_are_promised():
    scenes = [make_scene("train", index) for index in range(300)]
    things = [thing for scene in scenes for thing in scene.things]
    assert {scene.ground for scene in scenes} == set(GROUNDS)
    assert max(len(scene.things) for scene in scenes) == MOST_THINGS
    assert min(len(scene.things) for scene in scenes) >= 3
    assert all(SMALLEST <= thing.size <= LARGEST for thing in things)
    assert sum(thing.size < SMALL for thing in things) > len(things) / 20
    assert {thing.word for thing in things} - {""} == set(WORDS)
    assert all(0 <= edge <= 1 for scene in scenes for index in range(len(scene.things)) for edge in scene.box(index))


def test_training_scenes_never_show_a_held_out_style_and_others_do():
    held_out = {
        split: sum(thing.is_held_out for index in range(100) for thing in make_scene(split, index).things)
        for split in SPLITS
    }
    assert held_out["train"] == 0
    assert held_out["validation"] > 20
    assert held_out["test"] > 20


def test_a_thing_in_front_hides_what_is_behind_it():
    behind, front = Thing(0, "noto", 60, 40, 40), Thing(SIGN, "0", 30, 30, 50, word="STOP", colour="red")
    alone, both = render(Scene((behind,), "plain", (1,))), render(Scene((behind, front), "plain", (1,)))
    assert alone.visible.tolist() == [1.0]
    assert both.visible[1] == 1.0
    hidden = (alone.shown == 0) & (both.shown == 1)
    assert both.visible[0] == pytest.approx(1 - hidden.sum() / (alone.shown == 0).sum())
    assert 0.2 < both.visible[0] < 0.9


@pytest.mark.parametrize("index", range(6))
def test_owners_are_the_things_that_patches_show(index):
    scene = make_scene("test", index)
    drawing = render(scene)
    for patch, owner in enumerate(drawing.owners):
        rows, columns = (slice(place * PATCH, (place + 1) * PATCH) for place in divmod(patch, GRID))
        counts = [int((drawing.shown[rows, columns] == number).sum()) for number in range(len(scene.things))]
        expected = counts.index(max(counts)) if max(counts) >= PATCH * PATCH / 4 else -1
        assert owner == expected


def test_pixels_change_only_inside_the_box_of_a_thing():
    scene = make_scene("test", 3)
    whole, without = render(scene), render(Scene(scene.things[:-1], scene.ground, scene.seed))
    top, left, bottom, right = (round(edge * SIDE) for edge in scene.box(len(scene.things) - 1))
    changed = (whole.pixels != without.pixels).any(-1)
    assert changed[top:bottom, left:right].sum() > 50
    changed[top:bottom, left:right] = False
    assert not changed.any()


def test_a_thing_may_leave_the_image():
    thing = Thing(5, "flat", 40, -25, 180)
    drawing = render(Scene((thing,), "noisy", (2,)))
    assert 0 < drawing.areas[0] < (sprite(thing)[..., 3] > 127).sum()
    gone = render(Scene((Thing(5, "flat", 40, SIDE + 5, 0),), "noisy", (2,)))
    assert gone.areas.tolist() == [0]
    assert np.array_equal(gone.pixels, render(Scene((), "noisy", (2,))).pixels)
    assert set(render(Scene((), "noisy", (2,))).owners.tolist()) == {-1}


def test_a_large_scene_is_cut_into_the_whole_and_four_quarters():
    scene = make_scene("test", 0, LARGE_SIDE)
    assert scene.things != make_scene("test", 0).things
    drawing = render(scene)
    whole, *quarters = crop_five(drawing)
    assert all(part.shape == (SIDE, SIDE, 3) for part in (whole, *quarters))
    rows = [np.concatenate(quarters[start : start + 2], 1) for start in (0, 2)]
    assert np.array_equal(np.concatenate(rows), drawing.pixels)
    assert len(drawing.owners) == 4 * GRID * GRID
    with pytest.raises(ValueError, match="only a scene of 384"):
        crop_five(render(make_scene("test", 0)))
    with pytest.raises(ValueError, match="192 or 384 pixels"):
        make_scene("test", 0, 100)


def test_unknown_splits_and_negative_numbers_are_errors():
    with pytest.raises(ValueError, match="split must be one of train, validation, test"):
        make_scene("dev", 0)
    with pytest.raises(ValueError, match="numbered from 0"):
        make_scene("test", -1)
