"""Pictures from files that may be anything, and text in any script."""

from __future__ import annotations

import struct
import zlib
from types import SimpleNamespace

import pytest
from helpers.exhibits import exhibit, noise
from PIL import Image, ImageDraw, ImageFont

from eadp.view import draw
from eadp.view.pictures import as_seen, read
from eadp.view.text import Pen, fonts, has


def header_only(path, width, height):
    """A PNG that says how large it is and has no pixels at all."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    return path


def test_what_is_no_picture_is_told_so(tmp_path):
    (tmp_path / "notes.png").write_text("not a picture")
    with pytest.raises(ValueError, match=r"notes\.png is no picture that can be read"):
        read(tmp_path / "notes.png")


@pytest.mark.parametrize(("side", "says"), [(10_000, "10000×10000 pixels"), (20_000, "too large")])
def test_a_hundred_megapixels_are_refused_from_the_header(tmp_path, side, says):
    with pytest.raises(ValueError, match=f"{says}.*at most 50 megapixels"):
        read(header_only(tmp_path / "huge.png", side, side))


def test_a_damaged_picture_is_told_so(tmp_path):
    path = header_only(tmp_path / "cut.png", 20, 20)
    with pytest.raises(ValueError, match=r"cut\.png is damaged"):
        read(path)


def test_a_missing_file_and_an_empty_folder_are_told_so(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        read(tmp_path / "nothing.png")
    with pytest.raises(ValueError, match="is empty"):
        read(tmp_path)


def test_an_animation_and_a_folder_are_clips(tmp_path):
    frames = [Image.new("RGB", (20, 10), (30 * number, 0, 0)) for number in range(8)]
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:])
    assert len(read(tmp_path / "clip.gif")) == 8
    few = read(tmp_path / "clip.gif", frames=3)
    assert [each.getpixel((0, 0))[0] for each in few] == [0, 120, 210]
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, frame in enumerate(frames):
        frame.save(folder / f"{number}.png")
    assert [each.getpixel((0, 0))[0] for each in read(folder, frames=2)] == [0, 210]


def test_many_frames_count_together(tmp_path, monkeypatch):
    monkeypatch.setattr("eadp.view.pictures.MEGAPIXELS", 1)
    frames = [Image.new("RGB", (200, 200), (8 * number, 0, 0)) for number in range(30)]
    frames[0].save(tmp_path / "long.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match="in each of 30 frames"):
        read(tmp_path / "long.gif", frames=30)


def test_a_centre_crop_shows_the_centre():
    clip = SimpleNamespace(
        do_center_crop=True, size={"shortest_edge": 50}, crop_size={"width": 50, "height": 50}, image_mean=[0.5] * 3
    )
    image = noise(200, 100)
    assert as_seen(image, SimpleNamespace(image_processor=clip)).tobytes() == image.crop((50, 0, 150, 100)).tobytes()
    llava = type("LlavaImageProcessorPil", (SimpleNamespace,), {})(**vars(clip), do_pad=True)
    assert as_seen(image, llava).size == (200, 200)
    whole = SimpleNamespace(do_center_crop=False, size={"height": 64, "width": 64})
    assert as_seen(image, whole) is image


# ── Text ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sign", ["你", "好", "🐱", "é", "β", "×"])
def test_signs_of_other_scripts_are_found_in_some_font(sign):
    assert any(has(font, sign) for font in fonts(30)), f"no font at hand draws {sign}; `make browser` installs some"


def test_what_no_font_has_is_written_as_its_code_point():
    plain = (ImageFont.load_default(20),)
    image = Image.new("RGB", (400, 60), "white")
    pen = Pen(ImageDraw.Draw(image), 20)
    pen.fonts = plain
    assert pen.width("你") == pytest.approx(pen.width("[U+4F60]"))
    assert pen.width("a\u200d\ufe0f") == pen.width("a")


def test_a_question_in_chinese_with_emoji_is_drawn():
    made = exhibit([(4, 4)], [noise(40, 40)], 4, question="红色 的 猫 🐱 在 哪里 ？")
    pen = Pen(ImageDraw.Draw(Image.new("RGB", (10, 10))), 30)
    assert pen.width("猫🐱") < pen.width("[U+732B]")
    assert draw(made).size[0] == 1760


def test_text_is_cut_to_its_room():
    pen = Pen(ImageDraw.Draw(Image.new("RGB", (10, 10))), 20)
    assert pen.width(pen.fitted("a very long word " * 9, 200)) <= 200
    assert all(pen.width(line) <= 150 for line in pen.lines("some words and averyveryverylongwordindeed too", 150))
    assert pen.lines("one two", 1000) == ["one two"]
