"""Words for the classes of ImageNet: names, synonyms, plurals, phrases, and words for many classes."""

from __future__ import annotations

import pytest

from eadp.models.guides.class_words import class_words

NAMES = class_words().names


def named(phrase: str) -> set[str]:
    return {NAMES[number] for number in class_words().classes_of(phrase)}


def test_every_class_has_a_name_that_means_it():
    assert len(NAMES) == 1000
    assert (NAMES[0], NAMES[999]) == ("tench", "toilet tissue")
    assert all(class_words().classes_of(name)[number] == 1 for number, name in enumerate(NAMES))


@pytest.mark.parametrize(
    ("word", "among", "not_among"),
    [
        ("animal", {"tench", "tabby", "zebra"}, {"banana", "espresso", "jeep"}),
        ("dog", {"Chihuahua", "dalmatian"}, {"hotdog", "tabby", "timber wolf"}),
        ("fruit", {"banana", "lemon", "strawberry"}, {"espresso", "broccoli"}),
        ("drink", {"espresso", "red wine"}, {"banana", "cocktail shaker"}),
        ("vehicle", {"jeep", "airliner", "mountain bike"}, {"zebra"}),
        ("automobile", {"jeep", "convertible"}, {"airliner"}),
        ("polar bear", {"ice bear"}, {"brown bear"}),
        ("puppy", {"Chihuahua"}, {"tabby"}),
        ("kitten", {"tabby"}, {"Chihuahua"}),
    ],
)
def test_synonyms_and_words_for_many_classes(word, among, not_among):
    assert among <= named(word)
    assert not not_among & named(word)


@pytest.mark.parametrize(
    ("plural", "singular"),
    [
        ("dogs", "dog"),
        ("foxes", "fox"),
        ("strawberries", "strawberry"),
        ("mice", "mouse"),
        ("Geese", "goose"),
        ("polar bears", "polar bear"),
        ("brushes", "brush"),
        ("dog's", "dog"),
        ("dog’s", "dog"),
    ],
)
def test_plurals(plural, singular):
    assert named(plural) == named(singular) != set()


@pytest.mark.parametrize("word", ["is", "there", "a", "the", "what", "of", "it", "red", "colour", "left", "xyzzy"])
def test_words_that_name_no_thing_are_words_for_no_class(word):
    assert named(word) == set()


def test_the_share_of_uses_that_mean_a_class():
    """The name of a class always means it; "top" rarely means a lid."""
    assert set(class_words().classes_of("bottlecap").values()) == {1.0}
    assert max(class_words().classes_of("top").values()) < 0.1 < max(class_words().classes_of("dog").values())


def test_phrases_are_read_as_a_whole():
    read = class_words().read("Is the hot dog near the dogs?")
    assert [word.text for word in read] == ["Is", "the", "hot", "dog", "near", "the", "dogs"]
    assert read[2].classes == read[3].classes == class_words().classes_of("hot dog") != {}
    assert read[6].classes == class_words().classes_of("dog")
    assert not any(read[index].classes for index in (0, 1, 4, 5))


def test_a_question_without_words():
    assert class_words().read(" ?! ") == []
