"""The words of questions about things: articles, plurals, and several templates per kind of question.

Slots: `{a}` is a thing with its article ("an owl"), `{the}` with "the", `{other}` a second thing with "the", `{many}`
its plural, `{group}` a category ("animal"), `{groups}` its plural, `{where}` a place.
"""

from __future__ import annotations

MASS = frozenset(
    ("bread", "popcorn", "cheese", "sushi", "milk", "chocolate", "corn", "garlic", "broccoli", "fire", "lightning")
)
"""Names that have no article and no plural."""

_PLURALS = {
    "sheep": "sheep",
    "fish": "fish",
    "deer": "deer",
    "shrimp": "shrimp",
    "squid": "squid",
    "wolf": "wolves",
    "knife": "knives",
    "scarf": "scarves",
    "snowman": "snowmen",
    "maple leaf": "maple leaves",
    "die": "dice",
    "computer mouse": "computer mice",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "volcano": "volcanoes",
}
GROUPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "animal": ("animal", "animals", ("animal", "bird", "bug")),
    "bird": ("bird", "birds", ("bird",)),
    "fruit": ("fruit", "fruits", ("fruit",)),
    "vegetable": ("vegetable", "vegetables", ("vegetable",)),
    "vehicle": ("vehicle", "vehicles", ("vehicle",)),
    "building": ("building", "buildings", ("building",)),
    "instrument": ("musical instrument", "musical instruments", ("instrument",)),
    "clothing": ("piece of clothing", "pieces of clothing", ("clothing",)),
    "plant": ("plant", "plants", ("plant",)),
    "tool": ("tool", "tools", ("tool",)),
}
"""What a question may ask for by category: the words for one and for several, and the categories of the atlas."""

EXISTENCE = (
    "Is there {a} in the picture?",
    "Can you see {a}?",
    "Does the image show {a} anywhere?",
    "Is {a} visible in this scene?",
    "Do you find {a} here?",
    "Tell me whether there is {a} in this image.",
    "I am looking for {a}: is it in the picture?",
    "Would someone who looks at this picture find {a} in it?",
)
COUNT = (
    "How many {many} are there?",
    "How many {many} can you see in the picture?",
    "What is the number of {many} in the image?",
    "Count the {many}.",
    "Could you tell me how many {many} are in this scene?",
)
SIDE_ACROSS = (
    "Is {the} on the left or on the right?",
    "On which side of the picture is {the}, left or right?",
    "Is {the} in the left half or in the right half of the image?",
)
SIDE_DOWN = (
    "Is {the} at the top or at the bottom?",
    "Is {the} in the top half or in the bottom half of the image?",
    "Where is {the}, at the top or at the bottom of the picture?",
)
RELATION_ACROSS = (
    "Is {the} to the left or to the right of {other}?",
    "Does {the} lie left or right of {other}?",
    "Seen from {other}, is {the} on the left or on the right?",
)
RELATION_DOWN = (
    "Is {the} above or below {other}?",
    "Does {the} lie above or below {other}?",
    "Seen from {other}, is {the} above or below?",
)
PLACE = (
    "What is {where} in the picture?",
    "Which thing is {where}?",
    "Name the thing that is {where}.",
    "What do you see that is {where}?",
)
PLACES = {
    "left": ("furthest to the left", "closest to the left edge"),
    "right": ("furthest to the right", "closest to the right edge"),
    "top": ("highest up", "closest to the top edge"),
    "bottom": ("lowest down", "closest to the bottom edge"),
}
NEAREST = (
    "What is next to {the}?",
    "What is nearest to {the}?",
    "Which thing is closest to {the}?",
    "Name the thing that is right beside {the}.",
    "If you start at {the}, which thing do you reach first?",
)
DIRECTION = (
    "What is directly {where} {the}?",
    "Which thing is {where} {the}?",
    "Look at {the}: what is {where} it?",
)
DIRECTIONS = {"left": "to the left of", "right": "to the right of", "above": "above", "below": "below"}
BETWEEN = (
    "What is between {the} and {other}?",
    "Which thing lies between {the} and {other}?",
    "Name the thing that is in between {the} and {other}.",
)
ODD = (
    "Which thing does not belong with the others?",
    "What is the odd one out?",
    "All things but one are of the same sort: which one is different?",
    "Which of these things is not like the rest?",
)
GROUP = (
    "Which {group} is in the picture?",
    "What {group} can you see?",
    "There is one {group} here: what is it?",
    "Which {group} does the image show?",
)
GROUP_PLACE = (
    "Which {group} is {where}?",
    "Of all the {groups}, which one is {where}?",
    "What is the {group} that is {where}?",
)
SMALLEST = (
    "What is the smallest thing in the picture?",
    "Which of all these things is the smallest?",
    "Name the thing that is smaller than all others.",
)
READING = (
    "What does {the} say?",
    "What is written on {the}?",
    "Read {the}.",
    "Which word is on {the}?",
    "Can you tell me what it says on {the}?",
)
BEFORE = (
    "Please look at the whole picture with care before you answer.",
    "Here is an image of some things that lie on a background, and I would like to know this about it.",
    "You are a helpful assistant, and you look at what is really there.",
    "Take your time and think about what you see in front of you.",
    "I have been looking at this for a while now and I am still not sure, so I hope that you can help me with it.",
    "As part of a test of how well machines see, we ask each of them the same question, and this is yours.",
    "Do not worry about the background, or about the bars and dots that were put there to confuse you.",
)
AFTER = (
    "Answer the question using a single word or phrase.",
    "Please be brief and say only what you can see for sure.",
    "Give the answer only, with no other words around it.",
    "If you are not sure, look again, and then answer as well as you can.",
    "Keep it short, since someone else will have to read what you wrote later on.",
    "There is no need to explain how you found out or why you think so.",
)


def with_article(name: str) -> str:
    """Put "a" or "an" in front of a name, or nothing in front of a mass noun."""
    if name in MASS:
        return name
    vowel = (name[0].lower() in "aeiou" and not name.startswith("uni")) or name.startswith("hour")
    return f"{'an' if vowel else 'a'} {name}"


def plural(name: str) -> str:
    """Return the plural of a name."""
    if name in _PLURALS:
        return _PLURALS[name]
    if name.endswith(("s", "x", "ch", "sh")):
        return f"{name}es"
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}s"


CLIP_MOVES = (
    "Which way does {the} move?",
    "In which direction does {the} go: left, right, up or down?",
    "Tell me where {the} is heading, left, right, up or down.",
)
CLIP_APPEARS = (
    "What appears during the clip?",
    "Which thing was not there at the start but is there at the end?",
    "Something comes into the picture: what is it?",
)
CLIP_LEAVES = (
    "What leaves during the clip?",
    "Which thing was there at the start but is gone at the end?",
    "Something goes away: what is it?",
)
CLIP_CHANGES_INTO = (
    "What does {the} turn into?",
    "{the} becomes something else: what?",
    "What takes the place of {the}?",
)
CLIP_CHANGES_FROM = (
    "What was there before {the}?",
    "What was in the place of {the} at the start?",
    "Which thing turned into {the}?",
)
CLIP_READS = (
    "Which word does the {colour} sign show for a moment?",
    "For a short time there is a {colour} sign: what does it say?",
    "What was written on the {colour} sign that came and went?",
)
