"""Samples of the user: what is read, and errors that name the line."""

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
    assert found[1].source.endswith("line 3")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: "),
        ("[1]", "line 2: a sample is an object"),
        ({"question": "?"}, 'line 2: "image" must be a string'),
        ({"image": "a.png", "question": " "}, 'line 2: "question" must be a string'),
        ({"image": "a.png", "question": 3}, 'line 2: "question" must be a string'),
        ({"image": "a.png", "question": "?" * 9000}, "line 2: a question has 1 to 8,192 characters"),
        ({"image": "none.png", "question": "?"}, "line 2: there is no image"),
        ({"image": "a\0.png", "question": "?"}, "line 2: "),
    ],
)
def test_an_error_names_the_bad_line(folder, line, message):
    with pytest.raises(ValueError, match=message):
        read_samples(lines(folder, {"image": "a.png", "question": "?"}, line))


def test_an_unreadable_image_is_reported_with_its_line(folder):
    (folder / "c.png").write_text("not an image")
    [sample] = read_samples(lines(folder, {"image": "c.png", "question": "?"}))
    with pytest.raises(ValueError, match=r"line 1: c\.png is not an image that can be read"):
        sample.load_image()


def test_files_and_images_have_a_maximum_size(folder, monkeypatch):
    path = lines(folder, {"image": "a.png", "question": "?"})
    monkeypatch.setattr(images, "MAX_MEGAPIXELS", 4e-5)
    with pytest.raises(ValueError, match=r"line 1: a\.png has 8×6 pixels: at most 4e-05 megapixels"):
        read_samples(path)[0].load_image()
    monkeypatch.setattr(samples, "MAX_IMAGE_BYTES", 10)
    with pytest.raises(ValueError, match=r"line 1: .*at most 10 are read"):
        read_samples(path)
    monkeypatch.setattr(samples, "MAX_FILE_BYTES", 10)
    with pytest.raises(ValueError, match="split it"):
        read_samples(path)


def test_a_folder_of_images_with_questions_in_text_files(folder):
    (folder / "a.txt").write_text("How many?\n")
    assert [each.question for each in read_samples(folder, "What colour?")] == ["How many?", "What colour?"]
    with pytest.raises(ValueError, match=r"write it into b\.txt in the same folder, or give --question"):
        read_samples(folder)


@pytest.mark.parametrize(
    ("make", "question", "message"),
    [
        (lambda path: path / "nothing", None, "there is no"),
        (lambda path: path, None, "has no images"),
        (lambda path: lines(path, ""), None, "has no samples"),
        (lambda path: lines(path, "{}"), "Why?", "goes with a folder"),
    ],
)
def test_no_samples_is_an_error(tmp_path, make, question, message):
    with pytest.raises(ValueError, match=message):
        read_samples(make(tmp_path), question)


def test_a_file_that_is_not_utf8_is_an_error(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        read_samples(path)


def test_pocket_samples_need_no_file():
    [first, second] = samples.pocket_samples(2)
    assert first.question
    assert second.load_image().mode == "RGB"
