"""Write what WordNet says about the names of ImageNet's classes: src/eadp/models/guides/wordnet.

    python scripts/class_words.py WORDNET SYNSETS

WORDNET is the folder of WordNet 3.0 (Debian's package wordnet-base puts it into /usr/share/wordnet). SYNSETS is
`imagenet_synsets.txt` of the package timm, which lists the classes in their order.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

OUT = Path(__file__).parents[1] / "src/eadp/models/guides/wordnet"

MODIFIERS = "young|baby|adult|mature|male|female|uncastrated|castrated|domestic|domesticated|small|large|little"
NARROWER = re.compile(rf"^(?:an? |the )?(?:(?:{MODIFIERS}|of|an?|the|any) )*(?:{MODIFIERS})(?: of| an?| the| any)* ")
"""How the definition of a word begins that means a kind of what follows: "young" of "young domestic cat"."""


@dataclass
class Synset:
    """A meaning: its words and their sense keys, the meanings above it, its definition, and words for narrower ones."""

    lemmas: list[str]
    keys: list[str]
    parents: list[str]
    definition: str
    narrower: dict[str, str] = field(default_factory=dict)


class Usage:
    """How often each word means what, in the texts that WordNet's authors tagged.

    Args:
        wordnet: The folder with `cntlist.rev` and the indices.
    """

    def __init__(self, wordnet: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.senses: Counter[str] = Counter()
        self.uses: Counter[str] = Counter()
        for line in (wordnet / "cntlist.rev").read_text().splitlines():
            key, _, count = line.split()
            self.counts[key] = int(count)
            self.uses[key.partition("%")[0]] += int(count)
        for part in ("noun", "verb", "adj", "adv"):
            for line in (wordnet / f"index.{part}").read_text().splitlines():
                if not line.startswith(" "):
                    lemma, _, count, *_ = line.split()
                    self.senses[lemma] += int(count)

    def share(self, key: str) -> float:
        """The share of a word's uses that have one meaning, with one more use of every meaning than was counted."""
        lemma = key.partition("%")[0]
        return (self.counts[key] + 1) / (self.uses[lemma] + self.senses[lemma])


def read_nouns(path: Path) -> dict[str, Synset]:
    """Read `data.noun`: the synsets by their ids, "n" and eight digits as in ImageNet."""
    synsets = {}
    for line in path.read_text().splitlines():
        if line.startswith(" "):
            continue
        data, definition = line.split(" | ", 1)
        fields = data.split()
        count = int(fields[3], 16)
        lemmas = [lemma.replace("_", " ") for lemma in fields[4 : 4 + 2 * count : 2]]
        ids = [int(number, 16) for number in fields[5 : 5 + 2 * count : 2]]
        keys = [
            f"{lemma.replace(' ', '_').lower()}%1:{fields[1]}:{number:02d}::"
            for lemma, number in zip(lemmas, ids, strict=True)
        ]
        pointers = fields[5 + 2 * count :]
        parents = [
            f"n{pointers[i + 1]}" for i in range(0, 4 * int(fields[4 + 2 * count]), 4) if pointers[i] in ("@", "@i")
        ]
        synsets[f"n{fields[0]}"] = Synset(lemmas, keys, parents, definition.split(";")[0].strip())
    return synsets


def above(synsets: dict[str, Synset], name: str) -> set[str]:
    """A synset and all synsets above it."""
    return {name}.union(*(above(synsets, parent) for parent in synsets[name].parents))


def add_narrower(synsets: dict[str, Synset], known: dict[str, Synset]) -> None:
    """Add words without a class whose definition is a known word with modifiers, such as "puppy", "a young dog"."""
    by_lemma: dict[str, Synset] = {}
    for synset in known.values():
        for lemma in synset.lemmas:
            by_lemma.setdefault(lemma.lower(), synset)
    for synset in synsets.values():
        match = NARROWER.match(synset.definition)
        target = by_lemma.get(synset.definition[match.end() :]) if match else None
        if target is not None:
            for lemma, key in zip(synset.lemmas, synset.keys, strict=True):
                if lemma.lower() not in by_lemma:
                    target.narrower[lemma] = key


def with_share(lemma: str, share: float) -> str:
    """Write a word with the share of its uses that have this meaning, unless it is all of them."""
    return lemma if share > 0.995 else f"{lemma} ({share:.2f})"


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wordnet", type=Path, help="the folder of WordNet 3.0")
    parser.add_argument("synsets", type=Path, help="timm's imagenet_synsets.txt")
    given = parser.parse_args()
    synsets = read_nouns(given.wordnet / "data.noun")
    classes = given.synsets.read_text().split()
    known = {name: synsets[name] for name in sorted(set().union(*(above(synsets, name) for name in classes)))}
    add_narrower(synsets, known)
    usage = Usage(given.wordnet)
    lines = ["synset\tclass\tabove\twords\tnarrower words"]
    for name, synset in known.items():
        number = str(classes.index(name)) if name in classes else ""
        # ImageNet's photographs were chosen by the words for their class, whatever else these words mean.
        words = [
            lemma if number else with_share(lemma, usage.share(key))
            for lemma, key in zip(synset.lemmas, synset.keys, strict=True)
        ]
        narrower = [with_share(lemma, usage.share(key)) for lemma, key in synset.narrower.items()]
        row = (name, number, " ".join(synset.parents), "; ".join(words), "; ".join(narrower))
        lines.append("\t".join(row).rstrip("\t"))
    singulars_known = {lemma.lower() for synset in known.values() for lemma in (*synset.lemmas, *synset.narrower)}
    plurals = ["plural\tsingular"]
    for line in (given.wordnet / "noun.exc").read_text().splitlines():
        plural, *singulars = line.replace("_", " ").split()
        plurals += [f"{plural}\t{singular}" for singular in singulars if singular in singulars_known]
    for file, content in (("synsets.tsv", lines), ("plurals.tsv", plurals)):
        (OUT / file).write_text("\n".join(content) + "\n")
        print(f"{file}: {len(content) - 1} rows")


if __name__ == "__main__":
    main()
