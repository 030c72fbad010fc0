"""Training scenes and questions as arrays, generated in parallel and stored on disk."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress
from transformers import PreTrainedTokenizerFast

from eadp.pocket.model import GRID, PATCH
from eadp.pocket.text import format_prompt, train_tokenizer
from eadp.pocket.world import COLOURS, SHAPES, WRITINGS, Question, Scene, make_questions, make_scene, render
from eadp.pocket.world.scene import MAX_THINGS, SIDE

QUESTIONS_PER_SCENE = 12
MAX_QUESTION_TOKENS = 72
MAX_ANSWER_TOKENS = 4
CHUNK = 512
"""Scenes that a process generates at a time."""

THING_FIELDS = ("colour", "shape", "writing", "x", "y", "alike")
QUESTION_SEED = 1_000_003
"""Part of the seed of training questions; no other split uses it."""


@dataclass(frozen=True)
class Corpus:
    """n scenes with Q questions per scene. Tokens are padded with 0.

    Attributes:
        images: n×SIDE×SIDE×3.
        owners: n×GRID², the index of the thing that a patch shows; −1 for none.
        things: n×MAX_THINGS×THING_FIELDS; −1 for no thing.
        questions: n×Q×L, token ids.
        pointers: n×Q×L, the things that each token of a question names, as a bit mask of their indices.
        answers: n×Q×A, token ids.
    """

    images: NDArray[np.uint8]
    owners: NDArray[np.int8]
    things: NDArray[np.int16]
    questions: NDArray[np.int16]
    pointers: NDArray[np.uint8]
    answers: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.images)


def load_corpus(
    folder: Path, count: int, tokenizer: PreTrainedTokenizerFast, progress: Progress, workers: int
) -> Corpus:
    """Load the first `count` training scenes, mapped from disk. Missing ones are generated first."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = dict(zip(_NAMES, _arrays(0, tokenizer), strict=True))
    for name, array in sample.items():
        if not (file := folder / f"{name}.npy").exists():
            np.lib.format.open_memmap(file, "w+", array.dtype, (count, *array.shape))
    missing = [start for start in range(0, count, CHUNK) if not _completion_mark(folder, start).exists()]
    if missing:
        task = progress.add_task("draw scenes", total=len(missing))
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            for _ in pool.map(partial(_generate_chunk, folder, tokenizer), missing):
                progress.advance(task)
    return Corpus(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in _NAMES))


def world_tokenizer(scenes: int = 1500) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the questions of the first training scenes."""
    texts = (
        f"{format_prompt(question.text)} {question.answer}"
        for index in range(scenes)
        for question in training_questions(index, make_scene("train", index))
    )
    return train_tokenizer(texts)


def training_questions(index: int, scene: Scene) -> list[Question]:
    """Make the questions about training scene number `index`."""
    return make_questions(scene, np.random.default_rng((QUESTION_SEED, index)), QUESTIONS_PER_SCENE)


def patch_owners(visible: NDArray[np.float32]) -> NDArray[np.int8]:
    """Find the thing that covers most of each patch; −1 if none covers a quarter of it.

    Args:
        visible: things×SIDE×SIDE, the share of each pixel that shows a thing.

    Returns:
        GRID², indices of things.
    """
    shares = visible.reshape(-1, GRID, PATCH, GRID, PATCH).mean((2, 4)).reshape(len(visible), -1)
    return np.where(shares.max(0) >= 0.25, shares.argmax(0), -1).astype(np.int8)


_NAMES = tuple(field.name for field in fields(Corpus))


def _completion_mark(folder: Path, start: int) -> Path:
    """Return the empty file whose existence means that a chunk is complete."""
    return folder / f"drawn-{start:06d}"


def _generate_chunk(folder: Path, tokenizer: PreTrainedTokenizerFast, start: int) -> None:
    files = [np.load(folder / f"{name}.npy", mmap_mode="r+") for name in _NAMES]
    for index in range(start, min(start + CHUNK, len(files[0]))):
        for file, array in zip(files, _arrays(index, tokenizer), strict=True):
            file[index] = array
    for file in files:
        file.flush()
    _completion_mark(folder, start).touch()


def _arrays(index: int, tokenizer: PreTrainedTokenizerFast) -> tuple[NDArray[Any], ...]:
    scene = make_scene("train", index)
    image, visible = render(scene)
    made = training_questions(index, scene)
    encoded = tokenizer([question.text for question in made], add_special_tokens=False, return_offsets_mapping=True)
    answer_ids = tokenizer([f" {question.answer}" for question in made], add_special_tokens=False)["input_ids"]
    questions = np.zeros((QUESTIONS_PER_SCENE, MAX_QUESTION_TOKENS), np.int16)
    pointers = np.zeros((QUESTIONS_PER_SCENE, MAX_QUESTION_TOKENS), np.uint8)
    answers = np.zeros((QUESTIONS_PER_SCENE, MAX_ANSWER_TOKENS), np.int16)
    for row, question in enumerate(made):
        ids, offsets = encoded["input_ids"][row], encoded["offset_mapping"][row]
        questions[row, : len(ids)] = ids
        answers[row, : len(answer_ids[row])] = answer_ids[row]
        for begin, end, named in question.pointers:
            for column, (left, right) in enumerate(offsets):
                if left < end and right > begin:
                    pointers[row, column] = sum(1 << number for number in named)
    return image, patch_owners(visible), _thing_table(scene), questions, pointers, answers


def _thing_table(scene: Scene) -> NDArray[np.int16]:
    table = np.full((MAX_THINGS, len(THING_FIELDS)), -1, np.int16)
    shapes = [thing.shape for thing in scene.things]
    for row, thing in enumerate(scene.things):
        writing = WRITINGS.index(thing.writing) if thing.writing else -1
        cell = (int(thing.x * GRID / SIDE), int(thing.y * GRID / SIDE))
        kinds = (COLOURS.index(thing.colour), SHAPES.index(thing.shape), writing)
        table[row] = (*kinds, *cell, min(shapes.count(thing.shape), 4))
    return table
