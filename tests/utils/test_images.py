"""Untrusted image files."""

from __future__ import annotations

import struct
import zlib

import pytest
from PIL import Image

from eadp.utils import images
from eadp.utils.images import make_square, read_frames, read_image, spread_evenly


def header_only(path, width, height):
    """Write a PNG whose header states its size, but that has no pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    return path


def test_a_file_that_is_not_an_image_is_rejected(tmp_path):
    (tmp_path / "notes.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"notes\.png is not an image that can be read"):
        read_frames(tmp_path / "notes.png")


@pytest.mark.parametrize(("side", "says"), [(10_000, "10000×10000 pixels"), (20_000, "too large")])
def test_a_hundred_megapixels_are_rejected_by_the_header(tmp_path, side, says):
    with pytest.raises(ValueError, match=f"{says}.*at most 50 megapixels"):
        read_frames(header_only(tmp_path / "huge.png", side, side))


def test_a_damaged_image_is_rejected(tmp_path):
    path = header_only(tmp_path / "cut.png", 20, 20)
    with pytest.raises(ValueError, match=r"cut\.png is damaged"):
        read_frames(path)


def test_a_missing_file_and_an_empty_folder_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        read_frames(tmp_path / "nothing.png")
    with pytest.raises(ValueError, match="is empty"):
        read_frames(tmp_path)


def test_an_animation_and_a_folder_are_clips(tmp_path):
    frames = [Image.new("RGB", (20, 10), (30 * number, 0, 0)) for number in range(8)]
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:])
    assert len(read_frames(tmp_path / "clip.gif")) == 8
    few = read_frames(tmp_path / "clip.gif", count=3)
    assert [each.getpixel((0, 0))[0] for each in few] == [0, 120, 210]
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, frame in enumerate(frames):
        frame.save(folder / f"{number}.png")
    assert [each.getpixel((0, 0))[0] for each in read_frames(folder, count=2)] == [0, 210]


def test_the_size_limit_counts_all_frames(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_MEGAPIXELS", 1)
    frames = [Image.new("RGB", (200, 200), (8 * number, 0, 0)) for number in range(30)]
    frames[0].save(tmp_path / "long.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match="in each of 30 frames"):
        read_frames(tmp_path / "long.gif", count=30)


def test_an_image_is_rotated_upright_by_default(tmp_path):
    orientation = Image.Exif()
    orientation[0x0112] = 6
    Image.new("RGB", (20, 10)).save(tmp_path / "turned.jpg", exif=orientation)
    assert read_image(tmp_path / "turned.jpg").size == (10, 20)
    assert read_image(tmp_path / "turned.jpg", upright=False).size == (20, 10)


def test_the_size_limit_can_be_lifted(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_MEGAPIXELS", 1e-5)
    Image.new("L", (20, 10)).save(tmp_path / "grey.png")
    with pytest.raises(ValueError, match=r"grey\.png has 20×10 pixels"):
        read_image(tmp_path / "grey.png")
    assert read_image(tmp_path / "grey.png", limited=False).mode == "RGB"


def test_spread_evenly_includes_both_ends():
    assert spread_evenly(0, 8, 3).tolist() == [0, 4, 7]
    assert spread_evenly(10, 13, 64).tolist() == [10, 11, 12]
    assert spread_evenly(5, 50, 1).tolist() == [5]


def test_a_square_is_stretched_or_padded():
    image = Image.new("RGB", (20, 10), "red")
    assert make_square(image, 6).getcolors() == [(36, (255, 0, 0))]
    padded = make_square(image, pad_colour=(0, 0, 255))
    assert padded.size == (20, 20)
    assert padded.getpixel((0, 4)) == (0, 0, 255)
    assert padded.getpixel((0, 5)) == (255, 0, 0)
