"""What is asked in a measurement: drawn scenes, the lines of a file, or the pictures of a folder.

A file is JSONL, one sample a line: {"image": "cats/1.jpg", "question": "How many cats are there?"}; paths are relative
to the file. A folder holds pictures; the question about NAME.jpg is the text of NAME.txt beside it, or one question for
all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
LARGEST_FILE, LARGEST_PICTURE, MOST_PIXELS, LONGEST_QUESTION = 64 << 20, 64 << 20, 50_000_000, 8192
"""Bytes of a file of samples and of a picture, pixels of a picture, characters of a question."""


@dataclass(frozen=True)
class Asked:
    """A question about a picture. where: for messages."""

    image: Path | Image.Image
    question: str
    where: str = "a drawn scene"

    def picture(self) -> Image.Image:
        if isinstance(self.image, Image.Image):
            return self.image
        try:
            image = Image.open(self.image)
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(
                    f"{self.where}: {self.image} has {image.width}×{image.height} pixels, and {MOST_PIXELS:,} are the "
                    "most; scale it down"
                )
            return image.convert("RGB")
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise ValueError(f"{self.where}: {self.image} cannot be read as a picture ({error})") from error


def drawn(total: int) -> Iterator[Asked]:
    """The pocket world's scenes and questions."""
    from eadp.pocket.samples import samples

    return (Asked(sample.image, sample.question) for sample in samples("test", total))


def read(path: Path, question: str | None = None) -> list[Asked]:
    """All samples of a file or a folder, each line checked before any is used."""
    if path.is_dir():
        return _folder(path, question)
    if not path.is_file():
        raise ValueError(f"there is no {path}: give a JSONL file of samples, or a folder of pictures")
    if question is not None:
        raise ValueError(f"{path} is a file, whose lines bring their questions: a question for all goes with a folder")
    return _file(path)


def _file(path: Path) -> list[Asked]:
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, and {LARGEST_FILE:,} are the most; split it")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error})") from error
    found = [_line(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise ValueError(f'{path} has no samples: each line is like {{"image": "1.jpg", "question": "…"}}')
    return found


def _line(path: Path, number: int, line: str) -> Asked:
    where = f"{path}, line {number}"
    try:
        sample = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError(f"{where}: nested too deeply") from error
    if not isinstance(sample, dict):
        raise ValueError(f'{where}: a sample is an object with "image" and "question", got {type(sample).__name__}')
    for key in ("image", "question"):
        if not isinstance(sample.get(key), str) or not sample[key].strip():
            raise ValueError(f'{where}: "{key}" must be a text that is not empty, got {sample.get(key)!r}')
    if "\0" in sample["image"]:
        raise ValueError(f'{where}: "image" is no path')
    return Asked(_picture(path.parent / sample["image"], where), _question(sample["question"], where), where)


def _folder(path: Path, question: str | None) -> list[Asked]:
    found = []
    for image in sorted(each for each in path.iterdir() if each.suffix.lower() in PICTURES):
        beside = image.with_suffix(".txt")
        if beside.is_file():
            text = _question(beside.read_text(encoding="utf-8", errors="replace").strip(), str(beside))
        elif question is not None:
            text = _question(question, "--question")
        else:
            raise ValueError(
                f"nothing is asked about {image}: write it into {beside.name} beside it, or give --question"
            )
        found.append(Asked(_picture(image, str(image)), text, str(image)))
    if not found:
        raise ValueError(f"{path} has no pictures ({', '.join(PICTURES)})")
    return found


def _picture(path: Path, where: str) -> Path:
    if not path.is_file():
        raise ValueError(f"{where}: there is no picture {path}")
    if path.stat().st_size > LARGEST_PICTURE:
        raise ValueError(f"{where}: {path} has {path.stat().st_size:,} bytes, and {LARGEST_PICTURE:,} are the most")
    return path


def _question(text: str, where: str) -> str:
    if not text or len(text) > LONGEST_QUESTION:
        raise ValueError(f"{where}: a question has 1 to {LONGEST_QUESTION:,} characters, got {len(text):,}")
    return text
