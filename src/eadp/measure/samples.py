"""The samples of a measurement: scenes of the pocket world, the lines of a file, or the images of a folder.

A file is JSONL with one sample per line: {"image": "cats/1.jpg", "question": "How many cats are there?"}. Paths are
relative to the file. In a folder, the question about NAME.jpg is the text of NAME.txt, or one question for all images.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from eadp.utils.images import read_image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
MAX_FILE_BYTES = MAX_IMAGE_BYTES = 64 << 20
MAX_QUESTION_LENGTH = 8192
"""Largest number of characters of a question."""


@dataclass(frozen=True)
class BenchSample:
    """A question about an image.

    Attributes:
        image: The image, or its file.
        question: The question.
        source: Where the sample comes from, for error messages.
    """

    image: Path | Image.Image
    question: str
    source: str = "a scene of the pocket world"

    def load_image(self) -> Image.Image:
        """Return the image; read it if it is a file.

        Raises:
            ValueError: If the file is not an image that can be read.
        """
        if isinstance(self.image, Image.Image):
            return self.image
        try:
            return read_image(self.image)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.source}: {error}") from error


def pocket_samples(total: int) -> Iterator[BenchSample]:
    """Generate scenes and questions of the pocket world's test split."""
    from eadp.pocket.samples import samples

    return (BenchSample(sample.image, sample.question) for sample in samples("test", total))


def read_samples(path: Path, question: str | None = None) -> list[BenchSample]:
    """Read all samples of a file or a folder. Every line is checked, and no image is decoded yet.

    Args:
        path: A JSONL file, or a folder of images.
        question: The question for images of a folder that have no .txt file.

    Returns:
        At least one sample.

    Raises:
        ValueError: If there are no samples, or one of them is wrong. The message names its line or file.
    """
    if path.is_dir():
        return _read_folder(path, question)
    if not path.is_file():
        raise ValueError(f"there is no {path}: give a JSONL file of samples, or a folder of images")
    if question is not None:
        raise ValueError(
            f"{path} is a file, and its lines have their own questions: one question for all goes with a folder"
        )
    return _read_file(path)


def _read_file(path: Path) -> list[BenchSample]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, but at most {MAX_FILE_BYTES:,} are read; split it")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error})") from error
    found = [_parse_line(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise ValueError(f'{path} has no samples: each line is like {{"image": "1.jpg", "question": "…"}}')
    return found


def _parse_line(path: Path, number: int, line: str) -> BenchSample:
    source = f"{path}, line {number}"
    try:
        sample = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{source}: not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError(f"{source}: nested too deeply") from error
    if not isinstance(sample, dict):
        raise ValueError(f'{source}: a sample is an object with "image" and "question", got {type(sample).__name__}')
    for key in ("image", "question"):
        if not isinstance(sample.get(key), str) or not sample[key].strip():
            raise ValueError(f'{source}: "{key}" must be a string that is not empty, got {sample.get(key)!r}')
    if "\0" in sample["image"]:
        raise ValueError(f'{source}: "image" is not a path')
    return BenchSample(
        _check_image(path.parent / sample["image"], source), _check_question(sample["question"], source), source
    )


def _read_folder(path: Path, question: str | None) -> list[BenchSample]:
    found = []
    for image in sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES):
        question_file = image.with_suffix(".txt")
        if question_file.is_file():
            text = question_file.read_text(encoding="utf-8", errors="replace").strip()
            text = _check_question(text, str(question_file))
        elif question is not None:
            text = _check_question(question, "--question")
        else:
            raise ValueError(
                f"there is no question about {image}: write it into {question_file.name} in the same folder, or give "
                "--question"
            )
        found.append(BenchSample(_check_image(image, str(image)), text, str(image)))
    if not found:
        raise ValueError(f"{path} has no images ({', '.join(SUFFIXES)})")
    return found


def _check_image(path: Path, source: str) -> Path:
    if not path.is_file():
        raise ValueError(f"{source}: there is no image {path}")
    if path.stat().st_size > MAX_IMAGE_BYTES:
        raise ValueError(
            f"{source}: {path} has {path.stat().st_size:,} bytes, but at most {MAX_IMAGE_BYTES:,} are read"
        )
    return path


def _check_question(text: str, source: str) -> str:
    if not text or len(text) > MAX_QUESTION_LENGTH:
        raise ValueError(f"{source}: a question has 1 to {MAX_QUESTION_LENGTH:,} characters, got {len(text):,}")
    return text
