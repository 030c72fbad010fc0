"""Templates of the questions. `{it}` and `{other}` are replaced by "red circle", "circle" or "red thing"."""

from __future__ import annotations

import re

EXISTENCE = (
    "Is there a {it} in the picture?",
    "Can you see a {it}?",
    "Does the image show a {it} anywhere?",
    "Is a {it} visible in this scene?",
    "Do you find a {it} here?",
)
COLOUR = (
    "What colour is the {it}?",
    "Which colour does the {it} have?",
    "What is the colour of the {it} in the picture?",
    "Tell me the colour of the {it}.",
)
SHAPE = (
    "What shape is the {it}?",
    "What is the {it} in the picture?",
    "Which shape does the {it} have?",
    "Tell me what the {it} is.",
)
COUNT = (
    "How many {it} are there?",
    "How many {it} can you see in the picture?",
    "What is the number of {it} in the image?",
    "Count the {it}.",
)
SIDE_ACROSS = (
    "Is the {it} on the left or on the right?",
    "On which side of the picture is the {it}, left or right?",
    "Is the {it} in the left half or in the right half of the image?",
)
SIDE_DOWN = (
    "Is the {it} at the top or at the bottom?",
    "Is the {it} in the top half or in the bottom half of the image?",
    "Where is the {it}, at the top or at the bottom of the picture?",
)
RELATION_ACROSS = (
    "Is the {it} left or right of the {other}?",
    "Does the {it} lie to the left or to the right of the {other}?",
    "Would you say that the {it} is left or right of the {other}?",
)
RELATION_DOWN = (
    "Is the {it} above or below the {other}?",
    "Does the {it} lie above or below the {other}?",
    "Would you say that the {it} is above or below the {other}?",
)
READING = (
    "What does the {it} say?",
    "What is written on the {it}?",
    "Read the {it}.",
    "Which letter, number or word is on the {it}?",
)
BEFORE = (
    "Please look at the whole picture with care before you answer.",
    "Here is an image of some things that lie on a background, and I would like to know this about it.",
    "You are a helpful assistant, and you look at what is really there.",
    "Take your time and think about what you see in front of you.",
)
AFTER = (
    "Answer the question using a single word or phrase.",
    "Please be brief and say only what you can see for sure.",
    "Give the answer only, with no other words around it.",
    "If you are not sure, look again, and then answer as well as you can.",
)


def split_template(template: str) -> list[str]:
    """Split a template at its slots: "Is the {it} here?" → "Is the ", "it", " here?"."""
    return [segment for segment in re.split(r"\{(\w+)\}", template) if segment]


def noun(shape: str | None, plural: bool) -> str:
    """Return the noun for a shape; "thing" for None."""
    if shape is None:
        return "thing"
    return {"cross": "crosses"}.get(shape, f"{shape}s") if plural else shape
