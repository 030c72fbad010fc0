"""Words for the classes of ImageNet: their names, synonyms, plurals and the words above them, by WordNet.

The files in `wordnet` are written by scripts/class_words.py.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "wordnet"
WORD = re.compile(r"\w+(?:['’-]\w+)*")
ENTRY = re.compile(r"(?P<word>.+?)(?: \((?P<share>[\d.]+)\))?$")
"""A word in `synsets.tsv`, and the share of its uses that have this meaning."""

PLURAL_ENDINGS = (
    ("s", ""),
    ("ses", "s"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
    ("'s", ""),
)
"""Endings of plurals, and of the possessive, with what they replace."""


@dataclass(frozen=True)
class ReadWord:
    """A word of a question.

    Attributes:
        text: The word as it is written.
        classes: The classes that it is a word for, with the share of its uses that mean them; empty for most words.
    """

    text: str
    classes: Mapping[int, float]


class ClassWords:
    """What the words of a question say about the classes.

    Attributes:
        names: The name of each class, in the order of the classes.
    """

    def __init__(self) -> None:
        synsets = list(_read_table("synsets.tsv"))
        parents = {row["synset"]: row["above"].split() for row in synsets}
        below: dict[str, set[int]] = {}
        names = {}
        for row in synsets:
            if row["class"]:
                names[int(row["class"])] = row["words"].split("; ")[0]
                for synset in _above(row["synset"], parents):
                    below.setdefault(synset, set()).add(int(row["class"]))
        self.names = tuple(names[number] for number in sorted(names))
        self._singulars: dict[str, list[str]] = {}
        for row in _read_table("plurals.tsv"):
            self._singulars.setdefault(row["plural"], []).append(row["singular"])
        self._classes: dict[str, dict[int, float]] = {}
        for row in synsets:
            for entry in (*_entries(row["words"]), *_entries(row["narrower words"])):
                known = self._classes.setdefault(entry[0].lower(), {})
                for number in below[row["synset"]]:
                    known[number] = max(entry[1], known.get(number, 0.0))
        self._longest = max(len(phrase.split()) for phrase in self._classes)

    def classes_of(self, phrase: str) -> Mapping[int, float]:
        """Find the classes that a word or phrase is a word for.

        Args:
            phrase: A noun in any case, singular or plural: the name of a class, a synonym, or a word for several
                classes ("animal").

        Returns:
            The classes, each with the share of the word's uses that mean it. Empty if there are none.
        """
        phrase = phrase.lower().replace("’", "'")
        if phrase in self._classes:
            return self._classes[phrase]
        found: dict[int, float] = {}
        for singular in self._singular_forms(phrase):
            found |= self._classes.get(singular, {})
        return found

    def items(self) -> Iterator[tuple[str, Mapping[int, float]]]:
        """Yield all singular words and phrases with their classes, as `classes_of` finds them."""
        yield from self._classes.items()

    def read(self, question: str) -> list[ReadWord]:
        """Read the words of a question. Words that make up a phrase ("hot dog") all get the classes of the phrase."""
        words = WORD.findall(question)
        read: list[ReadWord] = []
        while len(read) < len(words):
            start = len(read)
            for end in range(min(start + self._longest, len(words)), start, -1):
                classes = self.classes_of(" ".join(words[start:end]))
                if classes or end == start + 1:
                    read += [ReadWord(word, classes) for word in words[start:end]]
                    break
        return read

    def _singular_forms(self, phrase: str) -> Iterator[str]:
        first, space, last = phrase.rpartition(" ")
        for singular in self._singulars.get(last, ()):
            yield f"{first}{space}{singular}"
        for ending, replacement in PLURAL_ENDINGS:
            if phrase.endswith(ending) and len(last) > len(ending):
                yield phrase.removesuffix(ending) + replacement


@cache
def class_words() -> ClassWords:
    """The words for the 1,000 classes of ImageNet."""
    return ClassWords()


def _read_table(file: str) -> Iterator[dict[str, str]]:
    with (FOLDER / file).open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, restval="")


def _entries(column: str) -> Iterator[tuple[str, float]]:
    for entry in filter(None, column.split("; ")):
        match = ENTRY.match(entry)
        if match is None:
            raise ValueError(f"{entry!r} in synsets.tsv is not a word with an optional share")
        yield match["word"], float(match["share"] or 1)


def _above(synset: str, parents: Mapping[str, list[str]]) -> set[str]:
    return {synset}.union(*(_above(parent, parents) for parent in parents[synset]))
