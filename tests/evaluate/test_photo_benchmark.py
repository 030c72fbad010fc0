"""The benchmark on photographs: what is read from its folders, how scenes are made, and what is measured."""

from __future__ import annotations

from importlib import util

import numpy as np
import pytest
import torch
from helpers import tiny
from helpers.synthetic import synthetic_image
from PIL import Image
from torch import nn

from eadp.evaluate import claims, photo_benchmark, photo_claims, photo_data
from eadp.evaluate.auc import rank_auc
from eadp.evaluate.photo_data import Photo, PhotoData
from eadp.models.efficientnet_lite import EfficientNetLiteConfig, EfficientNetLiteModel
from eadp.models.guides.class_words import class_words

NAMES = class_words().names
ZEBRA, JEEP = NAMES.index("zebra"), NAMES.index("jeep")


def write_stamp(folder, name, caption, side=220):
    folder.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    image.paste((200, 50, 50, 255), (side // 4, side // 4, side // 2, 3 * side // 4))
    image.save(folder / f"{name}.png")
    (folder / f"{name}.txt").write_text(f"{caption}\nfr.utf8=…\n", encoding="utf-8")


@pytest.fixture
def data(tmp_path):
    stamps = tmp_path / "stamps"
    write_stamp(stamps / "animals", "zebra", "A young zebra.")
    write_stamp(stamps / "animals", "bear", "Two polar bears!")
    write_stamp(stamps / "animals" / "cartoon", "drawn", "A zebra.")
    write_stamp(stamps / "animals", "small", "A zebra.", side=100)
    write_stamp(stamps / "animals", "unknown", "A giraffe.")
    write_stamp(stamps / "animals", "long", "A zebra lives in the plains of Africa.")
    foolbox, skimage = tmp_path / "foolbox", tmp_path / "skimage"
    for folder in (foolbox, skimage):
        folder.mkdir()
    for number, label in enumerate((ZEBRA, JEEP)):
        synthetic_image(64).save(foolbox / f"imagenet_{number:02d}_{label}.jpg")
    for file in (*photo_data.SKIMAGE_THINGS, *photo_data.SKIMAGE_GROUNDS):
        Image.new("RGB", (80, 64), (0, 80, 0)).save(skimage / file)
    return PhotoData(foolbox, skimage, stamps)


@pytest.fixture(scope="module")
def tower():
    torch.manual_seed(0)
    settings = tiny.EFFICIENTNET | {"num_classes": 1000, "hidden_size": 1008, "image_size": 48}
    return EfficientNetLiteModel(EfficientNetLiteConfig(**settings)).eval()


def test_photographs_and_their_words(data):
    found = {(photo.source, photo.name): photo for photo in data.photos()}
    stamps = {name: photo.word for (source, name), photo in found.items() if source == "stamps"}
    assert stamps == {"animals/bear.png": "polar bears", "animals/zebra.png": "zebra"}
    assert found["foolbox", f"imagenet_01_{JEEP}.jpg"].classes == {JEEP}
    assert found["scikit-image", "chelsea.png"].classes == class_words().classes_of("cat").keys()
    assert found["stamps", "animals/zebra.png"].general_word == "animal"
    assert found["stamps", "animals/zebra.png"].image.size == (55, 110)


def test_a_scene_shows_the_thing_where_its_mask_is(data):
    scenes = list(data.scenes())
    assert [scene.ground for scene in scenes] == ["scikit-image", "foolbox"] * 2
    for scene in scenes:
        pixels = np.array(scene.image).astype(int)
        assert pixels.shape == (768, 768, 3)
        assert 0.5 * 256**2 / 2 < scene.mask.sum() < 448**2 / 2 * 1.1
        assert (np.abs(pixels[scene.mask > 0] - (200, 50, 50)).max(1) <= 60).mean() > 0.95
        inside, outside = scene.cells((24, 24))
        assert inside.any()
        assert not (inside & outside).any()
        assert bool(outside.view(24, 24)[~torch.from_numpy(scene.mask).view(24, 32, 24, 32).any(3).any(1)].all())
    again = list(data.scenes())
    assert all(np.array_equal(one.mask, two.mask) for one, two in zip(scenes, again, strict=True))


def test_the_ground_does_not_show_what_is_asked_for(data):
    """The photograph of a zebra is no ground for an animal; that of a jeep is."""
    for scene in data.scenes():
        if scene.ground == "foolbox":
            corner = np.array(scene.image)[scene.mask == 0]
            jeep = np.array(photo_data._cover(Image.open(data.foolbox / f"imagenet_01_{JEEP}.jpg")))
            assert np.array_equal(corner[-1], jeep[scene.mask == 0][-1])


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [("zebra", True), ("A zebra.", True), ("two animals", True), ("an equine", True), ("horse", False), ("is", False)],
)
def test_a_thing_is_named_by_name_synonym_or_wider_word(answer, is_right):
    assert photo_benchmark.names_thing(answer, {ZEBRA}) is is_right


def test_naming_takes_the_class_with_the_largest_mean_logit(data, tower):
    with torch.no_grad():
        tower.classifier.bias[ZEBRA] += 1e4
    try:
        found = photo_benchmark.name_photos(tower, data.photos(), [16])
        named = {each.file: each for each in found if not each.has_views}
    finally:
        with torch.no_grad():
            tower.classifier.bias[ZEBRA] -= 1e4
    assert {(each.answer, each.side, each.has_views) for each in found} == {("zebra", 16, False), ("zebra", 48, True)}
    assert {file for file, each in named.items() if each.is_right} == {"animals/zebra.png", f"imagenet_00_{ZEBRA}.jpg"}


def test_rank_auc_is_the_chance_to_score_higher():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 5, (40,), generator=generator).float()
    inside, outside = torch.arange(40) < 15, torch.arange(40) >= 20
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[inside] for b in scores[outside]]
    assert rank_auc(scores, inside, outside) == pytest.approx(float(sum(pairs)) / len(pairs))


def test_maps_of_cells_that_show_the_thing_have_an_auc_of_one(data, tower, monkeypatch):
    """With the evidence for the thing put where the mask is, every map finds it, and EADP keeps its cells."""
    scenes = list(data.scenes())
    output, waiting = tower.forward, iter(scenes)

    def show(pixels, **options):
        scene, found = next(waiting), output(pixels, **options)
        described = found.hidden_states[-1].clone()
        inside, _ = scene.cells((12, 12))
        described[0, :, :1000] = 1e-4
        number = min(scene.thing.classes)
        described[0, inside.nonzero().flatten(), number] = 0.9
        found.hidden_states = (*found.hidden_states[:-1], described)
        return found

    monkeypatch.setattr(tower, "forward", show)
    results = photo_benchmark.measure_maps(tower, nn.Identity(), scenes, keep=8)
    assert [each.is_general for each in results] == [False, True] * 4
    for each in results:
        assert each.auc.keys() == photo_benchmark.MAPS.keys()
        assert each.auc["guide"] == each.auc["relevance"] == 1
        assert each.auc["smoothed"] == each.auc["polarized"] > 0.95
        assert each.kept > 2 * each.area


def test_missing_photographs_are_an_error_that_says_how_to_get_them(tmp_path, data, monkeypatch):
    with pytest.raises(FileNotFoundError, match="tuxpaint-stamps-default"):
        PhotoData.find(tmp_path / "nothing")
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps foolbox"):
        PhotoData.find(data.stamps)


def test_a_stamp_is_shown_as_a_square_on_white():
    stamp = Image.new("RGBA", (4, 2), (255, 0, 0, 0))
    stamp.putpixel((3, 1), (0, 0, 255, 255))
    shown = Photo("stamps", "x", stamp, "zebra", frozenset({ZEBRA})).on_white()
    assert shown.size == (4, 4)
    blue = [(x, y) for x in range(4) for y in range(4) if shown.getpixel((x, y)) != (255, 255, 255)]
    assert blue == [(3, 2)]


def test_claims_are_asked_about_photographs_by_word_and_by_length(data, tower):
    asked = list(photo_claims.ask(tower, nn.Linear(1008, 8), data))
    assert [(each.scene, each.dense) for each in asked] == [(n, d) for n in (0, 1) for _ in range(4) for d in (0, 1)]
    for each in asked:
        words = [word for word, named in zip(each.text.words, each.mentioned, strict=True) if named]
        assert " ".join(words).lower() in {"polar bears", "zebra", "animal"}
        assert each.things.shape == (1, len(each.tokens))
        assert each.dense == (len(each.text.words) > 5)
        assert claims.measure(each, {}, 4).keys() == {"tokens", "things", "pointing"}


def test_a_word_in_the_instruction_is_not_the_one_that_is_asked_for(data, tower, monkeypatch):
    monkeypatch.setattr(photo_claims, "BEFORE", ("Neither zebra nor animal, nor polar bears.",))
    for asked in photo_claims.ask(tower, nn.Linear(1008, 8), data):
        words = [word.lower() for word in asked.text.words]
        assert asked.mentioned.nonzero()[0].item() == words.index("where") + 3
