"""Questions about photographs that nobody trained on: what they show, and whether there is a thing of some name.

Absent things are of the same family as what the photograph shows, by WordNet: beside a tabby, is there a Persian cat?
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

from eadp.evaluate.journal import Record
from eadp.evaluate.photo_benchmark import names_thing
from eadp.evaluate.photo_data import Photo
from eadp.evaluate.pocket_benchmark import model_settings
from eadp.method_spec import MethodSpec, build_method, parse_method
from eadp.methods import Random
from eadp.models.guides.class_words import class_words
from eadp.pocket.names import PHOTO
from eadp.pocket.things.wording import with_article
from eadp.pocket.worlds import PHOTOGRAPHS

NAMING_WORDINGS = (
    "What is in this photo?",
    "What does this photograph show?",
    "What is the main thing in this picture?",
    "Name what you can see here.",
)
EXISTENCE_WORDINGS = (
    "Is there {thing} in the photo?",
    "Is there {thing} in this picture?",
    "Does this photograph show {thing}?",
    "Can you see {thing} here?",
)
NAMING, NAME, SYNONYM, WIDER, ABSENT = KINDS = ("naming", "its name", "a synonym", "a wider word", "absent sibling")
"""The kinds of questions: naming; "Is there …?" with a word of three kinds for what is there, and for what is not."""

WIDEST = 410
"""A word for more classes than this ("object") is not asked about and names nothing. "animal" has 398."""

FAMILY = 3
"""A family has at least this many classes beside those that the photograph shows."""

CLEAR = 0.5
"""A word is asked about only if more than this share of its uses means the classes."""


@dataclass(frozen=True)
class PhotoQuestion:
    """A question about a photograph.

    Attributes:
        photo: The photograph.
        question: The question.
        answer: The right answer: a name for the thing, "yes" or "no".
        kind: One of `KINDS`.
    """

    photo: Photo
    question: str
    answer: str
    kind: str

    @property
    def image(self) -> Image.Image:
        """The photograph as the model is given it."""
        return self.photo.on_white()

    @property
    def frames(self) -> tuple[Image.Image, ...]:
        """None: a photograph is no clip."""
        return ()

    def is_correct(self, answer: str) -> bool:
        """Whether an answer is right.

        A name is right if it is one of the thing, a synonym, or a wider word for it; "yes" and "no" are read from the
        first word.
        """
        if self.kind == NAMING:
            return names_thing(answer, self.photo.classes, WIDEST)
        words = answer.lower().replace(",", " ").replace(".", " ").split()
        return words[:1] == [self.answer]


def make_questions(photos: Sequence[Photo]) -> Iterator[PhotoQuestion]:
    """Ask about photographs, always the same questions.

    The first round asks each photograph what it shows. Each further round asks about the presence of something, in
    turns of what is there and what is not, so that each half of the answers is "yes" or "no" for each photograph.

    Args:
        photos: The photographs. About one without a family, only the first question is asked.
    """
    existence = []
    for number, photo in enumerate(photos):
        yield PhotoQuestion(photo, NAMING_WORDINGS[number % len(NAMING_WORDINGS)], photo.word, NAMING)
        existence.append(_existence(photo, number))
    for turn in range(max(map(len, existence), default=0)):
        for asked in existence:
            yield from asked[turn : turn + 1]


def _existence(photo: Photo, number: int) -> list[PhotoQuestion]:
    """As many questions about words for the thing as about absent things of its family."""
    rng = np.random.default_rng((0, number))
    present = _present_words(photo, rng)
    absent = _absent_words(photo, len(present), rng)
    asked = []
    for turn, ((kind, word), other) in enumerate(zip(present, absent, strict=False)):
        pair = ((kind, word, "yes"), (ABSENT, other, "no"))
        # Every other photograph begins with what is absent, so that the first questions of all are balanced, too.
        for each, thing, answer in pair[:: -1 if number % 2 else 1]:
            wording = EXISTENCE_WORDINGS[(number + turn) % len(EXISTENCE_WORDINGS)]
            asked.append(PhotoQuestion(photo, wording.format(thing=with_article(thing)), answer, each))
    return asked


def _present_words(photo: Photo, rng: np.random.Generator) -> list[tuple[str, str]]:
    """A name, a synonym and a wider word for what a photograph shows, as far as there are any, with their kinds."""
    singular = {word for word, _ in class_words().items()}
    names = [word for word, meant in _clear_words() if meant == photo.classes]
    if photo.word.lower() in singular:
        names = [photo.word, *(word for word in names if word != photo.word.lower())]
    wider = [word for word, meant in _clear_words() if photo.classes < meant]
    found = [(NAME, names[0])] if names else []
    found += [(SYNONYM, _choose(names[1:], rng))] if names[1:] else []
    found += [(WIDER, _choose(wider, rng))] if wider else []
    return found


def _absent_words(photo: Photo, count: int, rng: np.random.Generator) -> list[str]:
    """Names of different classes of the narrowest family, none of which the photograph shows."""
    families = [meant for _, meant in _clear_words() if photo.classes < meant and len(meant - photo.classes) >= FAMILY]
    if not families:
        return []
    siblings = sorted(min(families, key=lambda meant: (len(meant), sorted(meant))) - photo.classes)
    names = [class_words().names[number] for number in siblings]
    names = [name for name in names if class_words().classes_of(name).keys().isdisjoint(photo.classes)]
    return [names[index] for index in rng.permutation(len(names))[:count]]


@cache
def _clear_words() -> list[tuple[str, frozenset[int]]]:
    """All words that may be asked about, with the classes that they usually mean."""
    found = []
    for word, classes in class_words().items():
        meant = frozenset(number for number, share in classes.items() if share > CLEAR)
        if 0 < len(meant) <= WIDEST:
            found.append((word, meant))
    return found


def _choose(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


def journal_settings(model: str, photos: Sequence[Photo]) -> Record:
    """Return what all results in one folder share: the model, and the photographs with the words for them."""
    digest = hashlib.sha256()
    for photo in photos:
        digest.update(f"{photo.source} {photo.name} {photo.word} {photo.image.size}".encode())
        digest.update(photo.image.tobytes())
    return {"benchmark": PHOTOGRAPHS, "photographs": digest.hexdigest()[:16], "seed": Random().seed} | model_settings(
        model
    )


def select_specs(specs: Sequence[MethodSpec], methods: Sequence[str], model: str) -> tuple[list[MethodSpec], list[str]]:
    """Leave out methods that need the attention of the vision tower, if they were only named by `ZOO`.

    Args:
        specs: All settings.
        methods: The methods, as a user writes them.
        model: The name of the model.

    Returns:
        The settings that run on the model, and the names of the methods that were left out.

    Raises:
        ValueError: If such a method was named by itself.
    """
    if model != PHOTO:
        return list(specs), []
    refused = [spec for spec in specs if _needs_attention(spec)]
    asked_for = {parse_method(text, {})[0] for text in methods}
    if named := sorted({spec.method for spec in refused} & asked_for):
        raise ValueError(
            f"{', '.join(named)} needs the attention of the vision tower, but EfficientNet-Lite, the tower of photo, "
            "has none: leave the method out, or give another model"
        )
    return [spec for spec in specs if spec not in refused], sorted({spec.method for spec in refused})


def describe_left_out(methods: Sequence[str]) -> str:
    """Say which methods were left out, and why."""
    return f"left out, because they need the attention of a vision tower and this one has none: {', '.join(methods)}"


def _needs_attention(spec: MethodSpec) -> bool:
    method = build_method(spec)
    return method is not None and "vision_attention" in method.needs
