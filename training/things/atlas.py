"""Make the atlas of things: `python -m training.things.atlas --packages FOLDER`.

Fetch the four packages first, with the package manager of Node.js:

    npm pack emoji-datasource-google@16.0.0 emoji-datasource-twitter@16.0.0 \\
        @lobehub/fluent-emoji-3d@1.1.0 fluentui-emoji@1.3.0

The letters of signs come from fonts that matplotlib ships. `resvg_py` draws the flat style, which is stored as SVG.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from eadp.pocket.things.atlas import CELL, COLUMNS, FOLDER, LETTER_HEIGHT, LETTERS, STYLES

LIST = Path(__file__).with_name("things.txt")
MARGIN = 2
"""Empty pixels around a thing in its cell."""

SVG_SIDE = 256
"""Pixels along each side of an SVG before it is reduced."""

QUALITY = 82
"""Quality of the WebP files, of 100."""

FONTS = ("DejaVuSans-Bold", "DejaVuSerif-Bold", "DejaVuSansMono-Bold", "STIXGeneralBol", "DejaVuSans-Oblique")


@dataclass(frozen=True)
class Entry:
    """A line of things.txt."""

    code: str
    category: str
    name: str
    flat: str


def read_list(file: Path = LIST) -> list[Entry]:
    """Read the list of things, in the order of the atlas."""
    entries = []
    for line in file.read_text().splitlines():
        if line.startswith("#"):
            continue
        left, _, flat = line.partition(" =")
        code, category, name = left.split(" ", 2)
        entries.append(Entry(code, category, name, flat or name.replace(" ", "-")))
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.things.atlas", description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="folder with the .tgz files of the packages")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the atlas")
    options = parser.parse_args()
    entries = read_list()
    options.out.mkdir(parents=True, exist_ok=True)
    colours = np.zeros((len(STYLES), len(entries), 3))
    for number, style in enumerate(STYLES):
        sheet, colours[number] = draw_style(entries, options.packages, style)
        sheet.save(options.out / f"{style}.webp", quality=QUALITY, alpha_quality=100, method=6)
    letters, widths = draw_letters()
    letters.save(options.out / "letters.png", optimize=True)
    things = [
        {"name": entry.name, "category": entry.category, "colour": colours[:, row].mean(0).round().astype(int).tolist()}
        for row, entry in enumerate(entries)
    ]
    lines = ",\n".join(json.dumps(thing) for thing in things)
    text = f'{{"things": [\n{lines}\n],\n"letter_widths": {json.dumps(widths)}}}\n'
    (options.out / "atlas.json").write_text(text)
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"{len(entries)} things in {len(STYLES)} styles, {size / 1e6:.2f} MB, in {options.out}")


def draw_style(entries: list[Entry], packages: Path, style: str) -> tuple[Image.Image, np.ndarray]:
    """Draw one style of all things, a cell per thing, and compute the mean colour of each, n×3."""
    package, path, key = SOURCES[style]
    names = [path.format(key(entry)) for entry in entries]
    wanted = set(names)
    with tarfile.open(packages / package) as archive:
        # One pass through the archive: a compressed one has no index.
        data = {m.name: _read(archive, m) for m in archive if m.name in wanted}
    if missing := sorted(wanted - data.keys()):
        sys.exit(f"{package} has no {', '.join(missing)}")
    rows = -(-len(entries) // COLUMNS)
    sheet = Image.new("RGBA", (COLUMNS * CELL, rows * CELL))
    colours = np.zeros((len(entries), 3))
    for number, name in enumerate(names):
        picture = fit_into_cell(open_picture(name, data[name]))
        sheet.paste(picture, (number % COLUMNS * CELL, number // COLUMNS * CELL))
        pixels = np.asarray(picture, np.float64)
        colours[number] = (pixels[..., :3] * pixels[..., 3:]).sum((0, 1)) / pixels[..., 3].sum()
    return sheet, colours


def open_picture(name: str, data: bytes) -> Image.Image:
    """Open a picture of a package."""
    if name.endswith(".svg"):
        import resvg_py

        data = bytes(resvg_py.svg_to_bytes(svg_string=data.decode(), width=SVG_SIDE, height=SVG_SIDE))
    return Image.open(io.BytesIO(data)).convert("RGBA")


def fit_into_cell(picture: Image.Image) -> Image.Image:
    """Crop a picture to what is not transparent, and scale it so that its longer side fills the cell."""
    box = picture.getchannel("A").point(lambda alpha: 255 * (alpha > 8)).getbbox()
    if box is None:
        raise ValueError("the picture is empty")
    picture = picture.crop(box)
    room = CELL - 2 * MARGIN
    scale = room / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    cell = Image.new("RGBA", (CELL, CELL))
    cell.paste(picture, ((CELL - width) // 2, (CELL - height) // 2))
    return cell


def draw_letters() -> tuple[Image.Image, list[list[int]]]:
    """Draw the letters of every font, a row per font, and return the sheet and the width of every letter."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    widths: list[list[int]] = []
    strips = []
    for name in FONTS:
        font = ImageFont.truetype(folder / f"{name}.ttf", 48, layout_engine=ImageFont.Layout.BASIC)
        top, bottom = font.getbbox("H")[1], font.getbbox("H")[3]
        scale = (LETTER_HEIGHT - 12) / (bottom - top)
        font = ImageFont.truetype(folder / f"{name}.ttf", round(48 * scale), layout_engine=ImageFont.Layout.BASIC)
        widths.append([round(font.getlength(letter)) for letter in LETTERS])
        strip = Image.new("L", (sum(widths[-1]), LETTER_HEIGHT))
        left = 0
        for letter, width in zip(LETTERS, widths[-1], strict=True):
            cell = Image.new("L", (width, LETTER_HEIGHT))
            ImageDraw.Draw(cell).text((width / 2, LETTER_HEIGHT - 6), letter, fill=255, font=font, anchor="ms")
            strip.paste(cell, (left, 0))
            left += width
        strips.append(strip)
    sheet = Image.new("L", (max(strip.width for strip in strips), LETTER_HEIGHT * len(strips)))
    for row, strip in enumerate(strips):
        sheet.paste(strip, (0, row * LETTER_HEIGHT))
    return sheet, widths


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    if file is None:
        raise ValueError(f"{member.name} is not a file")
    return file.read()


def _code(entry: Entry) -> str:
    return entry.code


def _flat(entry: Entry) -> str:
    return entry.flat


SOURCES: dict[str, tuple[str, str, Callable[[Entry], str]]] = {
    "noto": ("emoji-datasource-google-16.0.0.tgz", "package/img/google/64/{}.png", _code),
    "twemoji": ("emoji-datasource-twitter-16.0.0.tgz", "package/img/twitter/64/{}.png", _code),
    "fluent": ("lobehub-fluent-emoji-3d-1.1.0.tgz", "package/assets/{}.webp", _code),
    "flat": ("fluentui-emoji-1.3.0.tgz", "package/icons/flat/{}.svg", _flat),
}
"""Per style: the package, the path of a picture in it, and what of an entry names the picture."""


if __name__ == "__main__":
    main()
