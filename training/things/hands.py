"""Other hands: the things of the atlas as more people have drawn them, for the vision stage alone.

A tower that has seen each thing in two or three drawings knows drawings rather than things. Four other hands have drawn
most of them once more. The package does not have these drawings, and no scene that is asked about shows them.
`hands/LICENCES.md` names their makers. The sheets are made from four npm packages, with
`python -m training.things.hands --packages FOLDER`:

    npm pack @iconify-json/openmoji@1.2.29 @iconify-json/emojione@1.2.3 @iconify-json/fxemoji@1.2.2 \\
        @iconify-json/streamline-emojis@1.2.4
"""

from __future__ import annotations

import argparse
import json
import re
import tarfile
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from PIL import Image

from eadp.pocket.things.atlas import CELL, COLUMNS
from training.things.atlas import QUALITY, Entry, fit_into_cell, open_picture, read_list

FOLDER = Path(__file__).parent / "hands"
PACKAGES = {
    "openmoji": "iconify-json-openmoji-1.2.29.tgz",
    "emojione": "iconify-json-emojione-1.2.3.tgz",
    "fxemoji": "iconify-json-fxemoji-1.2.2.tgz",
    "streamline": "iconify-json-streamline-emojis-1.2.4.tgz",
}
"""The packages by hand. Each has all pictures as SVG in one file, under names of its own."""


@cache
def hands_of(kind: int) -> tuple[str, ...]:
    """Return the other hands that have drawn a kind of thing."""
    return tuple(hand for hand in PACKAGES if _cell(kind, hand).getchannel("A").getbbox() is not None)


@cache
def picture(kind: int, hand: str) -> Image.Image:
    """Return a kind of thing as another hand drew it, as `eadp.pocket.things.atlas.picture` does."""
    cell = _cell(kind, hand)
    return cell.crop(cell.getchannel("A").getbbox()).convert("RGBa")


def _cell(kind: int, hand: str) -> Image.Image:
    top, left = kind // COLUMNS * CELL, kind % COLUMNS * CELL
    return _sheet(hand).crop((left, top, left + CELL, top + CELL))


@cache
def _sheet(hand: str) -> Image.Image:
    return Image.open(FOLDER / f"{hand}.webp").convert("RGBA")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.things.hands", description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="folder with the .tgz files of the packages")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the sheets")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    entries = read_list()
    for hand, package in PACKAGES.items():
        drawings = read_drawings(options.packages / package)
        sheet = Image.new("RGBA", (COLUMNS * CELL, -(-len(entries) // COLUMNS) * CELL))
        found = 0
        for number, entry in enumerate(entries):
            drawing = next((drawings[name] for name in _names(entry) if name in drawings), None)
            if drawing is not None:
                place = (number % COLUMNS * CELL, number // COLUMNS * CELL)
                sheet.paste(fit_into_cell(open_picture(f"{hand}.svg", drawing.encode())), place)
                found += 1
        sheet.save(options.out / f"{hand}.webp", quality=QUALITY, alpha_quality=100, method=6)
        print(f"{hand}: {found} of {len(entries)} things")


def read_drawings(package: Path) -> dict[str, str]:
    """Read the pictures of a package as SVG by their names without hyphens and numbers: "fox-face-2" is "foxface"."""
    with tarfile.open(package) as archive:
        file = archive.extractfile("package/icons.json")
        if file is None:
            raise ValueError(f"{package} has no icons")
        icons = json.load(file)
    width, height = icons.get("width", 16), icons.get("height", 16)
    bodies = {name: icon["body"] for name, icon in icons["icons"].items()}
    bodies |= {alias: bodies[of["parent"]] for alias, of in icons.get("aliases", {}).items() if of["parent"] in bodies}
    return {
        _squash(re.sub(r"-?\d$", "", name)): f'<svg xmlns="http://www.w3.org/2000/svg" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width} {height}">{body}</svg>'
        for name, body in bodies.items()
    }


def _names(entry: Entry) -> Iterator[str]:
    """The names that a thing may have, as `read_drawings` writes them: that of Unicode comes first."""
    official = unicodedata.name(chr(int(entry.code.split("-")[0], 16)), "")
    yield from map(_squash, (official, entry.flat, entry.name, f"{entry.name} face"))


def _squash(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


if __name__ == "__main__":
    main()
