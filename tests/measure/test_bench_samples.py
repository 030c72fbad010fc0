"""A user's own samples: what is read, and what is refused with its line."""

import json

import pytest
from PIL import Image

from eadp.measure import samples
from eadp.measure.samples import read_samples
from eadp.utils import images


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.jpg"):
        Image.new("RGB", (8, 6), "red").save(tmp_path / name)
    return tmp_path


def lines(folder, *rows):
    path = folder / "data.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_a_file_of_samples(folder):
    good = {"image": "a.png", "question": "What is it?"}
    found = read_samples(lines(folder, good, "", {"image": str(folder / "b.jpg"), "question": "And this?", "id": 3}))
    assert [each.question for each in found] == ["What is it?", "And this?"]
    assert found[0].load_image().size == (8, 6)
    assert found[1].where.endswith("line 3")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: "),
        ("[1]", "line 2: a sample is an object"),
        ({"question": "?"}, 'line 2: "image" must be a text'),
        ({"image": "a.png", "question": " "}, 'line 2: "question" must be a text'),
        ({"image": "a.png", "question": 3}, 'line 2: "question" must be a text'),
        ({"image": "a.png", "question": "?" * 9000}, "line 2: a question has 1 to 8,192 characters"),
        ({"image": "none.png", "question": "?"}, "line 2: there is no image"),
        ({"image": "a\0.png", "question": "?"}, "line 2: "),
    ],
)
def test_a_bad_line_is_refused_with_its_number(folder, line, says):
    with pytest.raises(ValueError, match=says):
        read_samples(lines(folder, {"image": "a.png", "question": "?"}, line))


def test_what_is_no_picture_is_refused_with_its_line(folder):
    (folder / "c.png").write_text("no picture")
    [asked] = read_samples(lines(folder, {"image": "c.png", "question": "?"}))
    with pytest.raises(ValueError, match=r"line 1: c\.png is not an image that can be read"):
        asked.load_image()


def test_sizes_have_limits(folder, monkeypatch):
    path = lines(folder, {"image": "a.png", "question": "?"})
    monkeypatch.setattr(images, "MAX_MEGAPIXELS", 4e-5)
    with pytest.raises(ValueError, match=r"line 1: a\.png has 8×6 pixels: at most 4e-05 megapixels"):
        read_samples(path)[0].load_image()
    monkeypatch.setattr(samples, "LARGEST_IMAGE", 10)
    with pytest.raises(ValueError, match=r"line 1: .*10 are the most"):
        read_samples(path)
    monkeypatch.setattr(samples, "LARGEST_FILE", 10)
    with pytest.raises(ValueError, match="split it"):
        read_samples(path)


def test_a_folder_of_pictures_with_what_is_asked_beside(folder):
    (folder / "a.txt").write_text("How many?\n")
    assert [each.question for each in read_samples(folder, "What colour?")] == ["How many?", "What colour?"]
    with pytest.raises(ValueError, match=r"write it into b\.txt beside it, or give --question"):
        read_samples(folder)


@pytest.mark.parametrize(
    ("make", "question", "says"),
    [
        (lambda path: path / "nothing", None, "there is no"),
        (lambda path: path, None, "has no images"),
        (lambda path: lines(path, ""), None, "has no samples"),
        (lambda path: lines(path, "{}"), "Why?", "goes with a folder"),
    ],
)
def test_nothing_to_ask_is_an_error(tmp_path, make, question, says):
    with pytest.raises(ValueError, match=says):
        read_samples(make(tmp_path), question)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="no text in UTF-8"):
        read_samples(path)


def test_drawn_scenes_need_no_file():
    [first, second] = samples.drawn_samples(2)
    assert first.question
    assert second.load_image().mode == "RGB"
