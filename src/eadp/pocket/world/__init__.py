"""The world of the pocket model: scenes, their images, questions about them, and short clips."""

from eadp.pocket.world.clips import Clip, make_clip
from eadp.pocket.world.questions import KINDS, Question, make_question, make_questions
from eadp.pocket.world.render import render, render_image
from eadp.pocket.world.scene import COLOURS, SHAPES, SIDE, SPLITS, WRITINGS, Scene, Split, Thing, make_scene

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
    "make_clip",
    "make_question",
    "make_questions",
    "make_scene",
    "render",
    "render_image",
]
