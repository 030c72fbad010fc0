"""The world that the pocket model knows: scenes, their pictures, questions about them, and short clips."""

from eadp.pocket.world.clips import Clip, clip
from eadp.pocket.world.questions import KINDS, Question, ask, ask_many
from eadp.pocket.world.render import draw, render
from eadp.pocket.world.scene import COLOURS, SHAPES, SIDE, SPLITS, WRITINGS, Scene, Split, Thing, scene

__all__ = [
    "COLOURS",
    "KINDS",
    "SHAPES",
    "SIDE",
    "SPLITS",
    "WRITINGS",
    "Clip",
    "Question",
    "Scene",
    "Split",
    "Thing",
    "ask",
    "ask_many",
    "clip",
    "draw",
    "render",
    "scene",
]
