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

from PIL import Image

from eadp.utils.images import read_image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
LARGEST_FILE, LARGEST_IMAGE, LONGEST_QUESTION = 64 << 20, 64 << 20, 8192
"""Bytes of a file of samples, bytes of an image, characters of a question."""


@dataclass(frozen=True)
class BenchSample:
    """A question about a picture. where: for messages."""

    image: Path | Image.Image
    question: str
    where: str = "a drawn scene"

    def load_image(self) -> Image.Image:
        if isinstance(self.image, Image.Image):
            return self.image
        try:
            return read_image(self.image)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.where}: {error}") from error


def drawn_samples(total: int) -> Iterator[BenchSample]:
    """The pocket world's scenes and questions."""
    from eadp.pocket.samples import samples

    return (BenchSample(sample.image, sample.question) for sample in samples("test", total))


def read_samples(path: Path, question: str | None = None) -> list[BenchSample]:
    """All samples of a file or a folder, each line checked before any is used."""
    if path.is_dir():
        return _folder(path, question)
    if not path.is_file():
        raise ValueError(f"there is no {path}: give a JSONL file of samples, or a folder of images")
    if question is not None:
        raise ValueError(f"{path} is a file, whose lines bring their questions: a question for all goes with a folder")
    return _file(path)


def _file(path: Path) -> list[BenchSample]:
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


def _line(path: Path, number: int, line: str) -> BenchSample:
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
    return BenchSample(
        _checked_image(path.parent / sample["image"], where), _question(sample["question"], where), where
    )


def _folder(path: Path, question: str | None) -> list[BenchSample]:
    found = []
    for image in sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES):
        beside = image.with_suffix(".txt")
        if beside.is_file():
            text = _question(beside.read_text(encoding="utf-8", errors="replace").strip(), str(beside))
        elif question is not None:
            text = _question(question, "--question")
        else:
            raise ValueError(
                f"nothing is asked about {image}: write it into {beside.name} beside it, or give --question"
            )
        found.append(BenchSample(_checked_image(image, str(image)), text, str(image)))
    if not found:
        raise ValueError(f"{path} has no images ({', '.join(SUFFIXES)})")
    return found


def _checked_image(path: Path, where: str) -> Path:
    if not path.is_file():
        raise ValueError(f"{where}: there is no image {path}")
    if path.stat().st_size > LARGEST_IMAGE:
        raise ValueError(f"{where}: {path} has {path.stat().st_size:,} bytes, and {LARGEST_IMAGE:,} are the most")
    return path


def _question(text: str, where: str) -> str:
    if not text or len(text) > LONGEST_QUESTION:
        raise ValueError(f"{where}: a question has 1 to {LONGEST_QUESTION:,} characters, got {len(text):,}")
    return text
