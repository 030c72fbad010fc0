"""Scenes and questions as arrays, drawn ahead in parallel and kept on disk."""

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
from eadp.pocket.text import learn_tokenizer, prompt
from eadp.pocket.world import COLOURS, SHAPES, WRITINGS, Question, Scene, ask_many, render, scene
from eadp.pocket.world.scene import MOST_THINGS, SIDE

QUESTIONS = 12
"""Questions written for every scene."""

LONGEST = 72
ANSWER = 4
CHUNK = 512
THING_FIELDS = ("colour", "shape", "writing", "x", "y", "alike")
TRAIN_QUESTIONS = 1_000_003
"""Part of the seed of a training question; no other split uses it."""


@dataclass(frozen=True)
class Corpus:
    """n scenes. Numbers of things are bits in `pointers`: which things each token of a question points at.

    images n×SIDE×SIDE×3 · owners n×GRID², the thing that a patch shows, −1 for none · things n×8×fields, −1 where there
    is none · questions, pointers n×QUESTIONS×LONGEST · answers n×QUESTIONS×ANSWER; 0 is padding.
    """

    images: NDArray[np.uint8]
    owners: NDArray[np.int8]
    things: NDArray[np.int16]
    questions: NDArray[np.int16]
    pointers: NDArray[np.uint8]
    answers: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.images)


def corpus(folder: Path, count: int, tokenizer: PreTrainedTokenizerFast, progress: Progress, workers: int) -> Corpus:
    """The first `count` training scenes, mapped from disk; what was not drawn before is drawn now."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = dict(zip(_NAMES, _arrays(0, tokenizer), strict=True))
    for name, array in sample.items():
        if not (file := folder / f"{name}.npy").exists():
            np.lib.format.open_memmap(file, "w+", array.dtype, (count, *array.shape))
    missing = [start for start in range(0, count, CHUNK) if not _mark(folder, start).exists()]
    if missing:
        task = progress.add_task("draw scenes", total=len(missing))
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            for _ in pool.map(partial(_draw_chunk, folder, tokenizer), missing):
                progress.advance(task)
    return Corpus(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in _NAMES))


def world_tokenizer(scenes: int = 1500) -> PreTrainedTokenizerFast:
    """Learnt from the questions of the first training scenes."""
    texts = (
        f"{prompt(question.text)} {question.answer}"
        for index in range(scenes)
        for question in training_questions(index, scene("train", index))
    )
    return learn_tokenizer(texts)


def training_questions(index: int, of: Scene) -> list[Question]:
    return ask_many(of, np.random.default_rng((TRAIN_QUESTIONS, index)), QUESTIONS)


def owners(visible: NDArray[np.float32]) -> NDArray[np.int8]:
    """The thing that shows most in each patch, −1 where none fills a quarter of it. visible: things×SIDE×SIDE."""
    shares = visible.reshape(-1, GRID, PATCH, GRID, PATCH).mean((2, 4)).reshape(len(visible), -1)
    return np.where(shares.max(0) >= 0.25, shares.argmax(0), -1).astype(np.int8)


_NAMES = tuple(field.name for field in fields(Corpus))


def _mark(folder: Path, start: int) -> Path:
    """Says that a chunk is complete."""
    return folder / f"drawn-{start:06d}"


def _draw_chunk(folder: Path, tokenizer: PreTrainedTokenizerFast, start: int) -> None:
    files = [np.load(folder / f"{name}.npy", mmap_mode="r+") for name in _NAMES]
    for index in range(start, min(start + CHUNK, len(files[0]))):
        for file, array in zip(files, _arrays(index, tokenizer), strict=True):
            file[index] = array
    for file in files:
        file.flush()
    _mark(folder, start).touch()


def _arrays(index: int, tokenizer: PreTrainedTokenizerFast) -> tuple[NDArray[Any], ...]:
    made = scene("train", index)
    image, visible = render(made)
    asked = training_questions(index, made)
    encoded = tokenizer([question.text for question in asked], add_special_tokens=False, return_offsets_mapping=True)
    answers_ids = tokenizer([f" {question.answer}" for question in asked], add_special_tokens=False)["input_ids"]
    questions = np.zeros((QUESTIONS, LONGEST), np.int16)
    pointers = np.zeros((QUESTIONS, LONGEST), np.uint8)
    answers = np.zeros((QUESTIONS, ANSWER), np.int16)
    for row, question in enumerate(asked):
        ids, offsets = encoded["input_ids"][row], encoded["offset_mapping"][row]
        questions[row, : len(ids)] = ids
        answers[row, : len(answers_ids[row])] = answers_ids[row]
        for begin, end, about in question.pointers:
            for column, (left, right) in enumerate(offsets):
                if left < end and right > begin:
                    pointers[row, column] = sum(1 << number for number in about)
    return image, owners(visible), _things(made), questions, pointers, answers


def _things(of: Scene) -> NDArray[np.int16]:
    table = np.full((MOST_THINGS, len(THING_FIELDS)), -1, np.int16)
    shapes = [thing.shape for thing in of.things]
    for row, thing in enumerate(of.things):
        writing = WRITINGS.index(thing.writing) if thing.writing else -1
        place = (int(thing.x * GRID / SIDE), int(thing.y * GRID / SIDE))
        kinds = (COLOURS.index(thing.colour), SHAPES.index(thing.shape), writing)
        table[row] = (*kinds, *place, min(shapes.count(thing.shape), 4))
    return table
