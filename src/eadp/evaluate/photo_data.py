"""Photographs that nobody trained on, and scenes made of them: things pasted on other photographs, with their masks.

Nothing is downloaded here, and nothing of it ships with the package. `PhotoData.find` says how to get what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eadp.core.types import Grid
from eadp.models.guides.class_words import ReadWord, class_words
from eadp.utils.images import read_image

GET_FOOLBOX = "run `pip install --no-deps foolbox==3.3.4`"
GET_SKIMAGE = "run `pip install scikit-image`"
GET_STAMPS = (
    "on Debian, run `apt-get install tuxpaint-stamps-default`; or unpack the package of that name anywhere, and give "
    "its folder usr/share/tuxpaint/stamps"
)
STAMPS = Path("/usr/share/tuxpaint/stamps")

SKIMAGE_THINGS = {"chelsea.png": "cat", "coffee.png": "coffee", "motorcycle_left.png": "motorcycle"}
"""Photographs of scikit-image that show something ImageNet knows."""

SKIMAGE_GROUNDS = ("brick.png", "grass.png", "gravel.png", "rocket.jpg", "astronaut.png", "hubble_deep_field.jpg")
"""Photographs of scikit-image to paste things on."""

GENERAL_WORDS = ("dog", "insect", "bird", "fruit", "drink", "food", "vehicle", "hat", "clothing", "animal", "artifact")
"""Words for many classes, from narrow to wide."""

LONGEST_CAPTION, SMALLEST_STAMP = 6, 200
"""Words of a caption, and pixels of a stamp's longer side. Longer captions speak of other things too."""

SCENE_SIDE, THING_SIDES = 768, (256, 448)
"""Pixels of a scene's side, and the range of a thing's longer side in it."""


@dataclass(frozen=True)
class Photo:
    """A photograph of one thing.

    Attributes:
        source: Where it comes from: "foolbox", "stamps" or "scikit-image".
        name: Its file.
        image: The photograph. A stamp has an alpha channel.
        word: A word for the thing.
        classes: The classes that the word, or the label of the photograph, means.
    """

    source: str
    name: str
    image: Image.Image
    word: str
    classes: frozenset[int]

    @property
    def general_word(self) -> str | None:
        """The narrowest of `GENERAL_WORDS` that is wider than the word for the thing; None if there is none."""
        for word in GENERAL_WORDS:
            classes = class_words().classes_of(word).keys()
            if self.classes < classes:
                return word
        return None

    @property
    def words(self) -> tuple[str, ...]:
        """The word for the thing, and the wider one if there is one."""
        return tuple(filter(None, (self.word, self.general_word)))

    def on_white(self) -> Image.Image:
        """The photograph as a square, on white where it is transparent or not square."""
        width, height = self.image.size
        side = max(width, height)
        ground = Image.new("RGB", (side, side), "white")
        place = ((side - width) // 2, (side - height) // 2)
        ground.paste(self.image, place, self.image.getchannel("A") if self.image.mode == "RGBA" else None)
        return ground


@dataclass(frozen=True)
class Scene:
    """A thing pasted on a photograph.

    Attributes:
        thing: The thing.
        ground: The photograph's source.
        image: SCENE_SIDE × SCENE_SIDE pixels.
        mask: The same size; where the thing is.
    """

    thing: Photo
    ground: str
    image: Image.Image
    mask: np.ndarray

    def cells(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """Which cells of a grid are inside the thing (at least half of the cell), and which are outside (nothing)."""
        rows, columns = grid
        parts = self.mask.reshape(rows, SCENE_SIDE // rows, columns, SCENE_SIDE // columns)
        covered = torch.from_numpy(parts.mean((1, 3)).ravel())
        return covered >= 0.5, covered == 0


@dataclass(frozen=True)
class PhotoData:
    """The folders of the photographs.

    Attributes:
        foolbox: The images in the package foolbox.
        skimage: The images in the package scikit-image.
        stamps: The stamps of Tux Paint.
    """

    foolbox: Path
    skimage: Path
    stamps: Path

    @classmethod
    def find(cls, stamps: Path = STAMPS) -> PhotoData:
        """Find the photographs of the installed packages.

        Args:
            stamps: The folder of the stamps.

        Raises:
            FileNotFoundError: If some are missing, with what to do about it.
        """
        if not any(stamps.glob("animals/**/*.png")):
            raise FileNotFoundError(f"there are no stamps in {stamps}: {GET_STAMPS}")
        return cls(
            package_data("foolbox", "imagenet_00_243.jpg", GET_FOOLBOX),
            package_data("skimage", "chelsea.png", GET_SKIMAGE),
            stamps,
        )

    def photos(self) -> Iterator[Photo]:
        """All photographs of things that ImageNet knows."""
        yield from self.foolbox_photos()
        for file, word in SKIMAGE_THINGS.items():
            classes = frozenset(class_words().classes_of(word))
            yield Photo("scikit-image", file, read_image(self.skimage / file), word, classes)
        yield from self.stamp_photos()

    def foolbox_photos(self) -> Iterator[Photo]:
        """The photographs of foolbox, which have the number of their class in their names."""
        for path in sorted(self.foolbox.glob("imagenet_*.jpg")):
            number = int(path.stem.rpartition("_")[2])
            yield Photo("foolbox", path.name, read_image(path), class_words().names[number], frozenset({number}))

    def stamp_photos(self) -> Iterator[Photo]:
        """The stamps that are photographs, with a short caption that ends in a word for classes.

        Drawings are in folders called "cartoon". The word is the last one of the caption that is a word for a class: in
        "A tractor wheel." it is "wheel".
        """
        for path in sorted(self.stamps.rglob("*.png")):
            caption = path.with_suffix(".txt")
            if "cartoon" in path.parts or not caption.is_file():
                continue
            read = class_words().read(caption.read_text(encoding="utf-8").splitlines()[0])
            found = last_phrase(read)
            if found is None or len(read) > LONGEST_CAPTION:
                continue
            with Image.open(path) as opened:
                if opened.mode != "RGBA" or max(opened.size) < SMALLEST_STAMP:
                    continue
                image = opened.copy()
            name = str(path.relative_to(self.stamps))
            yield Photo("stamps", name, image.crop(image.getchannel("A").getbbox()), *found)

    def scenes(self, seed: int = 0) -> Iterator[Scene]:
        """Paste every stamp on two photographs: one of scikit-image, and one of foolbox that shows something else."""
        rng = np.random.default_rng(seed)
        skimage = [_cover(read_image(self.skimage / file)) for file in SKIMAGE_GROUNDS]
        others = [(photo.classes, _cover(photo.image)) for photo in self.foolbox_photos()]
        for thing in self.stamp_photos():
            avoided = set(class_words().classes_of(thing.general_word)) if thing.general_word else set()
            allowed = [image for classes, image in others if not classes & (thing.classes | avoided)]
            for source, grounds in (("scikit-image", skimage), ("foolbox", allowed)):
                ground = grounds[int(rng.integers(len(grounds)))]
                yield _paste(thing, source, ground, rng)


def last_phrase(read: list[ReadWord]) -> tuple[str, frozenset[int]] | None:
    """The last word or phrase that is a word for classes, and these classes; None if there is none."""
    known = [index for index, word in enumerate(read) if word.classes]
    if not known:
        return None
    last = known[-1]
    first = last
    # The words of a phrase share one object.
    while first and read[first - 1].classes is read[last].classes:
        first -= 1
    return " ".join(word.text for word in read[first : last + 1]), frozenset(read[last].classes)


def _paste(thing: Photo, source: str, ground: Image.Image, rng: np.random.Generator) -> Scene:
    scale = int(rng.integers(THING_SIDES[0], THING_SIDES[1], endpoint=True)) / max(thing.image.size)
    width, height = (max(1, round(side * scale)) for side in thing.image.size)
    stamp = thing.image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (int(rng.integers(SCENE_SIDE - side, endpoint=True)) for side in (width, height))
    image, alpha = ground.copy(), stamp.getchannel("A")
    image.paste(stamp, (left, top), alpha)
    mask = np.zeros((SCENE_SIDE, SCENE_SIDE), np.float32)
    mask[top : top + height, left : left + width] = np.asarray(alpha) > 127
    return Scene(thing, source, image, mask)


def _cover(image: Image.Image) -> Image.Image:
    """Scale and crop an image to the size of a scene."""
    scale = SCENE_SIDE / min(image.size)
    width, height = (max(SCENE_SIDE, round(side * scale)) for side in image.size)
    left, top = (width - SCENE_SIDE) // 2, (height - SCENE_SIDE) // 2
    scaled = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    return scaled.crop((left, top, left + SCENE_SIDE, top + SCENE_SIDE))


def package_data(package: str, file: str, remedy: str, folder: str = "data") -> Path:
    """Find a folder of an installed package, which is not imported.

    Args:
        package: The package.
        file: A file that must be in the folder.
        remedy: What to do if it is not.
        folder: The folder.

    Raises:
        FileNotFoundError: If it is not.
    """
    spec = util.find_spec(package)
    found = None if spec is None or spec.origin is None else Path(spec.origin).parent / folder
    if found is None or not (found / file).is_file():
        raise FileNotFoundError(f"the photographs of {package} are not installed: {remedy}")
    return found
