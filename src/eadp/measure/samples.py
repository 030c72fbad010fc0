"""The samples of a measurement: scenes of the pocket world, the lines of a file, or the images of a folder.

A file is JSONL with one sample per line: {"image": "cats/1.jpg", "question": "How many cats are there?"}. Paths are
relative to the file. In a folder, the question about NAME.jpg is the text of NAME.txt, or one question for all images.

Clips are animated files (GIF, WebP, APNG) or folders of frames. In a file, their key is "video".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from eadp.pocket.names import POCKET
from eadp.utils.images import read_frames, read_image, spread_evenly

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
CLIP_SUFFIXES = (".gif", ".webp", ".png", ".apng")
MAX_FILE_BYTES = MAX_IMAGE_BYTES = 64 << 20
EXAMPLES = {"image": "1.jpg", "video": "1.gif"}
MAX_QUESTION_LENGTH = 8192
"""Largest number of characters of a question."""


@dataclass(frozen=True)
class BenchSample:
    """A question about an image or a clip.

    Attributes:
        image: The image or the frames of the clip; or its file, or its folder of frames.
        question: The question.
        source: Where the sample comes from, for error messages.
    """

    image: Path | Image.Image | Sequence[Image.Image]
    question: str
    source: str = "a scene of the pocket world"

    def load_image(self) -> Image.Image:
        """Return the image; read it if it is a file.

        Raises:
            ValueError: If the file is not an image that can be read.
        """
        if isinstance(self.image, Image.Image):
            return self.image
        if not isinstance(self.image, Path):
            raise ValueError(f"{self.source}: this is a clip of {len(self.image)} frames, not an image")
        try:
            return read_image(self.image)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.source}: {error}") from error

    def load_frames(self, count: int) -> list[Image.Image]:
        """Return the frames of the clip, at most `count` of them, evenly spread.

        Raises:
            ValueError: If the file or folder is not a clip of at least two frames that can be read.
        """
        try:
            if isinstance(self.image, Path):
                frames = read_frames(self.image, count)
            else:
                given = [self.image] if isinstance(self.image, Image.Image) else self.image
                frames = [given[index] for index in spread_evenly(0, len(given), count)]
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.source}: {error}") from error
        if len(frames) < 2:
            raise ValueError(f"{self.source}: a clip has at least two frames, got {len(frames)}")
        return frames


def pocket_samples(total: int, model: str = POCKET) -> Iterator[BenchSample]:
    """Generate scenes and questions of the test split of the world that a model knows."""
    from eadp.pocket.worlds import samples_for

    return (BenchSample(sample.image, sample.question) for sample in samples_for(model, "test", total))


def pocket_clips(total: int, frames: int) -> Iterator[BenchSample]:
    """Generate clips of the pocket world's test split, with their questions."""
    from eadp.pocket.world import make_clip, render_image

    for number in range(total):
        clip = make_clip("test", number, frames)
        yield BenchSample([render_image(scene) for scene in clip.frames], clip.question, "a clip of the pocket world")


def read_samples(path: Path, question: str | None = None, clips: bool = False) -> list[BenchSample]:
    """Read all samples of a file or a folder. Every line is checked, and no image is decoded yet.

    Args:
        path: A JSONL file, or a folder of images.
        question: The question for images of a folder that have no .txt file.
        clips: Whether the samples are clips.

    Returns:
        At least one sample.

    Raises:
        ValueError: If there are no samples, or one of them is wrong. The message names its line or file.
    """
    if path.is_dir():
        return _read_folder(path, question, clips)
    if not path.is_file():
        raise ValueError(f"there is no {path}: give a JSONL file of samples, or a folder of images")
    if question is not None:
        raise ValueError(
            f"{path} is a file, and its lines have their own questions: one question for all goes with a folder"
        )
    return _read_file(path, "video" if clips else "image")


def _read_file(path: Path, kind: str) -> list[BenchSample]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, but at most {MAX_FILE_BYTES:,} are read; split it")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error})") from error
    found = [_parse_line(path, number, line, kind) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise ValueError(f'{path} has no samples: each line is like {{"{kind}": "{EXAMPLES[kind]}", "question": "…"}}')
    return found


def _parse_line(path: Path, number: int, line: str, kind: str) -> BenchSample:
    source = f"{path}, line {number}"
    try:
        sample = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{source}: not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError(f"{source}: nested too deeply") from error
    if not isinstance(sample, dict):
        raise ValueError(f'{source}: a sample is an object with "{kind}" and "question", got {type(sample).__name__}')
    for key in (kind, "question"):
        if not isinstance(sample.get(key), str) or not sample[key].strip():
            raise ValueError(f'{source}: "{key}" must be a string that is not empty, got {sample.get(key)!r}')
    if "\0" in sample[kind]:
        raise ValueError(f'{source}: "{kind}" is not a path')
    file = _check_file(path.parent / sample[kind], source, kind)
    return BenchSample(file, _check_question(sample["question"], source), source)


def _read_folder(path: Path, question: str | None, clips: bool) -> list[BenchSample]:
    found, kind, suffixes = [], "video" if clips else "image", CLIP_SUFFIXES if clips else SUFFIXES
    for image in sorted(
        each for each in path.iterdir() if each.suffix.lower() in suffixes or (clips and each.is_dir())
    ):
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
        found.append(BenchSample(_check_file(image, str(image), kind), text, str(image)))
    if not found:
        what = "clips: animated files or folders of frames" if clips else "images"
        raise ValueError(f"{path} has no {what} ({', '.join(suffixes)})")
    return found


def _check_file(path: Path, source: str, kind: str) -> Path:
    if kind == "video" and path.is_dir():
        return path  # Its frames are checked when they are read.
    if not path.is_file():
        raise ValueError(f"{source}: there is no {kind} {path}")
    if path.stat().st_size > MAX_IMAGE_BYTES:
        raise ValueError(
            f"{source}: {path} has {path.stat().st_size:,} bytes, but at most {MAX_IMAGE_BYTES:,} are read"
        )
    return path


def _check_question(text: str, source: str) -> str:
    if not text or len(text) > MAX_QUESTION_LENGTH:
        raise ValueError(f"{source}: a question has 1 to {MAX_QUESTION_LENGTH:,} characters, got {len(text):,}")
    return text
