"""The parts of the training for the world of things: windows, captions, contrasts, and the stage that joins them."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.progress import Progress
from safetensors.torch import load_file, save_file

from eadp.pocket.things.atlas import CELL, kinds
from eadp.pocket.things.model import build_clip_text, build_tower
from eadp.pocket.things.render import GRID, PATCH, render
from eadp.pocket.things.scene import SIGN, WORDS, make_scene
from training.things import clip, hands, recipe, results, tower, windows
from training.things.atlas import read_list
from training.things.crowds import WINDOWS_PER_CROWD, draw_crowds, make_crowd
from training.things.places import LARGE, NUMBERS, as_numbers, outlines_of
from training.things.text import END, PADDING, START, encode_captions, world_tokenizer
from training.things.windows import NO_WORD, NOTHING, SIGN_LABEL, draw_scenes, drop_background


@pytest.fixture(scope="module")
def tokenizer():
    return world_tokenizer()


def test_the_list_of_things_is_that_of_the_atlas():
    assert [(entry.name, entry.category) for entry in read_list()] == [(kind.name, kind.category) for kind in kinds()]


def test_labels_of_a_scene_say_what_its_patches_show():
    batch = draw_scenes("validation", 0, 2)
    for row in range(2):
        scene = make_scene("validation", row)
        drawing = render(scene)
        assert torch.equal((batch.pixels[row] * 255).round().byte(), torch.from_numpy(drawing.pixels).permute(2, 0, 1))
        for patch, owner in enumerate(drawing.owners):
            thing = scene.things[owner] if owner >= 0 else None
            label = NOTHING if thing is None else SIGN_LABEL if thing.kind == SIGN else thing.kind
            assert batch.labels[row, patch] == label
            assert batch.words[row, patch] == (WORDS.index(thing.word) if label == SIGN_LABEL else NO_WORD)
            assert bool(batch.held_out[row, patch]) == (thing is not None and thing.is_held_out)
            if thing is not None:
                own = torch.tensor([(patch % GRID + 0.5) * PATCH, (patch // GRID + 0.5) * PATCH])
                centre = own + PATCH * batch.offsets[row, patch]
                torch.testing.assert_close(centre, torch.tensor(thing.centre, dtype=torch.float32))


def test_windows_of_a_crowd_say_what_their_patches_show():
    batch = draw_crowds(3, 2)
    assert batch.pixels.shape == (2 * WINDOWS_PER_CROWD, 3, 64, 64)
    for crowd in range(2):
        own = slice(crowd * WINDOWS_PER_CROWD, (crowd + 1) * WINDOWS_PER_CROWD)
        scene = make_crowd(3 + crowd)
        # Other hands and bent shapes differ at the edges of things.
        owners = torch.from_numpy(render(scene).owners).long()[batch.positions[own]]
        assert (batch.owners[own] == owners).float().mean() > 0.8
        assert sorted(batch.positions[own].flatten().tolist()) == list(range(GRID * GRID))
        labels = torch.tensor([*(thing.kind for thing in scene.things), NOTHING])
        assert torch.equal(batch.labels[own], labels[batch.owners[own]])
        assert not any(thing.is_held_out for thing in scene.things)
    assert (batch.owners >= 0).float().mean() > 0.5


def test_other_hands_have_drawn_every_thing_at_least_once_more():
    assert all(hands.hands_of(kind) for kind in range(len(kinds())))
    drawn = [hands.picture(kind, hand) for kind in range(len(kinds())) for hand in hands.hands_of(kind)]
    assert len(drawn) > 2 * len(kinds())
    assert all(picture.mode == "RGBa" and max(picture.size) <= CELL for picture in drawn)


def test_drawings_are_found_by_their_names(tmp_path):
    body, icons = '<path d="M0 0h8v8z"/>', tmp_path / "icons.tgz"
    data = json.dumps(
        {
            "icons": {"fox-face-2": {"body": body}, "honeybee": {"body": "b"}},
            "aliases": {"bee": {"parent": "honeybee"}, "lost": {"parent": "nothing"}},
            "width": 8,
        }
    ).encode()
    with tarfile.open(icons, "w:gz") as archive:
        info = tarfile.TarInfo("package/icons.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    drawings = hands.read_drawings(icons)
    assert drawings.keys() == {"foxface", "honeybee", "bee"}
    assert drawings["bee"] == drawings["honeybee"]
    assert body in drawings["foxface"]
    assert 'viewBox="0 0 8 16"' in drawings["foxface"]


def test_places_are_written_as_numbers_that_give_them_back():
    batch = draw_scenes("validation", 0, 1)
    outlines = outlines_of(batch.positions, batch.offsets, batch.sizes)
    scene = batch.views[0].scene
    for patch, owner in enumerate(batch.owners[0].tolist()):
        if owner >= 0:
            thing = scene.things[owner]
            expected = (*(c / scene.side for c in thing.centre), max(thing.width, thing.height) / PATCH)
            torch.testing.assert_close(outlines[0, patch], torch.tensor(expected, dtype=torch.float32))
    numbers = as_numbers(outlines)
    assert numbers.shape == (1, GRID * GRID, NUMBERS)
    torch.testing.assert_close(numbers[..., -3:-1] / 2 + 0.5, outlines[..., :2])
    torch.testing.assert_close(numbers[..., -1], outlines[..., 2] / LARGE)
    assert numbers[..., :-3].abs().max() <= 1
    distances = torch.cdist(numbers[0], numbers[0])
    apart = (outlines[0, :, None] - outlines[0, None]).abs().amax(-1) > 1e-4
    assert distances[apart].min() > 0.05


def test_a_crowd_has_changed_colours_and_is_always_the_same():
    one, two = draw_crowds(5, 1), draw_crowds(5, 1)
    assert torch.equal(one.pixels, two.pixels)
    plain = torch.from_numpy(render(make_crowd(5)).pixels).permute(2, 0, 1)
    changed = (one.pixels[0] * 255).round().byte() != plain[:, :64, :64]
    shown = (one.owners[0] >= 0).view(8, 8).repeat_interleave(8, 0).repeat_interleave(8, 1)
    assert changed.any(0)[shown].float().mean() > 0.2
    assert changed.any(0)[~shown].float().mean() < 0.4


def test_dropping_background_keeps_all_things():
    batch = draw_scenes("train", 0, 4)
    kept, keep = drop_background(batch, 120)
    assert keep.shape == kept.labels.shape == (4, 120)
    shown = [(labels != NOTHING).sum().clamp(max=120) for labels in batch.labels]
    assert [(labels != NOTHING).sum() for labels in kept.labels] == shown
    assert torch.equal(kept.positions, batch.positions.gather(1, keep))


def test_the_encoder_of_windows_agrees_with_the_tower():
    """On a whole scene, it gives what LLaVA reads: hidden state −2."""
    torch.manual_seed(0)
    model, batch = build_tower().eval(), draw_scenes("validation", 0, 1)
    with torch.no_grad():
        mean, std = (torch.tensor(value).view(3, 1, 1) for value in (tower.OPENAI_CLIP_MEAN, tower.OPENAI_CLIP_STD))
        hidden = model((batch.pixels - mean) / std, output_hidden_states=True).hidden_states
        torch.testing.assert_close(hidden[-1], hidden[-2])
        found = tower.encode(model, batch.pixels, batch.positions)
        torch.testing.assert_close(found, hidden[-2], atol=1e-5, rtol=1e-5)


def test_every_name_and_word_of_the_world_is_one_token_per_word(tokenizer):
    for text in (*(kind.name for kind in kinds()), *WORDS):
        tokens = tokenizer.tokenize(f" {text}")
        assert len(tokens) == len(text.replace("-", " - ").split()), tokens


def test_captions_are_encoded_as_clip_does(tokenizer):
    ids = encode_captions(tokenizer, ["An owl.", "", "the duck " * 60])
    assert ids.shape == (3, 77)
    assert (ids[:, 0] == START).all()
    assert ids[1].tolist() == [START, END] + 75 * [PADDING]
    assert int(ids[2, -1]) == END
    assert clip.is_word(ids).sum(1).tolist() == [len(tokenizer.tokenize("An owl.")), 0, 75]


def test_late_interaction_is_the_mean_of_the_best_cosines():
    torch.manual_seed(0)
    tokens, patches = F.normalize(torch.randn(2, 4, 8), dim=-1), F.normalize(torch.randn(3, 5, 8), dim=-1)
    words = torch.tensor([[False, True, True, False], [False, True, True, True]])
    found = clip.late_interaction(tokens, words, patches)
    for caption in range(2):
        for image in range(3):
            best = [max(float(t @ p) for p in patches[image]) for t in tokens[caption][words[caption]]]
            assert found[caption, image].item() == pytest.approx(np.mean(best), abs=1e-6)


def test_a_contrast_is_low_for_true_pairs_only():
    right, wrong = torch.eye(4), torch.eye(4).roll(1, 0)
    scale = torch.tensor(3.0)
    assert clip._contrast(right, scale) < 1e-3 < 5 < clip._contrast(wrong, scale)


def test_the_tally_counts_votes_of_things_and_not_of_single_patches():
    batch = draw_scenes("validation", 0, 2)
    heads = tower.PatchHeads()
    tally = tower.Tally()
    with torch.no_grad():
        heads.linear.weight.zero_()
        heads.linear.bias.zero_()
        heads.linear.bias[NOTHING] = 1.0
        tower.tally_patches(tally, heads, torch.zeros(2, 1 + GRID * GRID, 160), batch)
    measures = tally.percentages()
    assert measures["nothing"] == 100
    assert measures["patches"] == measures["things"] == 0


def test_a_name_points_at_the_patch_with_the_highest_cosine(tokenizer):
    """With an image encoder that gives every patch of a thing the vector of the thing's name, all names point."""
    torch.manual_seed(0)
    batch, text = draw_scenes("validation", 0, 16), build_clip_text(len(tokenizer))
    text.visual_projection = torch.nn.Identity()
    normed = torch.zeros(16, 1 + GRID * GRID, 160)
    with torch.no_grad():
        for row, view in enumerate(batch.views):
            for index in view.unique:
                ids = encode_captions(tokenizer, [view.names[index]])
                name = (F.normalize(text.encode_tokens(ids), dim=-1) * clip.is_word(ids)[..., None]).sum(1)
                across, down = (min(max(int(place // PATCH), 0), GRID - 1) for place in view.things[index].centre)
                normed[row, 1 + GRID * down + across] = name
        tally = tower.Tally()
        clip.tally_captions(tally, text, tokenizer, normed, batch, seed=0)
        shifted = tower.Tally()
        clip.tally_captions(shifted, text, tokenizer, normed.roll(1, 0), batch, seed=0)
    assert tally.percentages()["pointing"] > 85, "two things may have their centres in one patch"
    assert shifted.percentages()["pointing"] < 60


@pytest.mark.slow
def test_the_vision_stage_runs_resumes_and_keeps_its_curve(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(recipe, "MEASURE_EVERY", 2)
    monkeypatch.setattr(recipe, "CROWDS", 1)
    monkeypatch.setattr(recipe, "SCENES", 2)
    monkeypatch.setattr(recipe, "VISION_VALIDATION", 4)
    monkeypatch.setattr(recipe, "VALIDATION_BATCH", 4)
    with Progress(disable=True) as progress:
        recipe.Recipe("smol", tmp_path, progress, steps=4).vision(train=True)
        resumed = recipe.Recipe("smol", tmp_path, progress, steps=4)
        resumed.vision(train=True)
    lines = [json.loads(line) for line in (tmp_path / "vision.curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert {"things", "patches", "pooled", "late", "pointing", "loss_label"} <= set(lines[0])
    (file,) = results.store(tmp_path, tmp_path / "results")
    assert file.stat().st_size < 8e6
    fresh = recipe.Recipe("smol", tmp_path / "fresh", progress)
    results.load("vision", {"tower": fresh.tower, "clip": fresh.text}, tmp_path / "results")
    for one, two in ((resumed.tower, fresh.tower), (resumed.text, fresh.text)):
        for trained, loaded in zip(one.parameters(), two.parameters(), strict=True):
            torch.testing.assert_close(trained, loaded, atol=1e-3, rtol=1e-3)


def test_the_result_of_a_vision_stage_may_be_mixed_with_the_old_one(tmp_path):
    for value in (1.0, 3.0):
        tensors = {"tower.weight": torch.full((2,), value), "optimizer.step": torch.ones(1)}
        save_file(tensors, tmp_path / "vision.safetensors")
        (file,) = results.store(tmp_path, tmp_path / "results", mix=1.0 if value == 1 else 0.25)
    assert load_file(file)["tower.weight"].tolist() == [1.5, 1.5]


def test_results_that_are_missing_or_do_not_fit_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="train it first"):
        results.load("vision", {}, tmp_path)
    save_file({"tower.weight": torch.ones(2)}, tmp_path / "vision.safetensors")
    with pytest.raises(ValueError, match="does not fit the tower"):
        results.load("vision", {"tower": build_tower()}, tmp_path)


def test_hues_turn_without_a_change_of_brightness():
    pixels = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    angles = torch.tensor([0.0, 0.5, torch.pi]).view(3, 1, 1, 1)
    turned = windows._turn_hues(pixels, angles)
    torch.testing.assert_close((turned * weights).sum(1), (pixels * weights).sum(1))
    torch.testing.assert_close(turned[0], pixels[0])
    assert not torch.allclose(turned[1], pixels[1], atol=0.05)
