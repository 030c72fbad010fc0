"""The world of things: scenes of everyday things in several styles, captions, questions and clips about them."""

from eadp.pocket.things.atlas import STYLES, Kind, kinds
from eadp.pocket.things.captions import make_caption
from eadp.pocket.things.clips import EVENTS, Clip, make_clip
from eadp.pocket.things.questions import KINDS, Question, make_question, make_questions
from eadp.pocket.things.render import Drawing, crop_five, render, render_clip
from eadp.pocket.things.samples import clip_samples, samples, scene_samples
from eadp.pocket.things.scene import LARGE_SIDE, SIDE, SPLITS, Scene, Split, Thing, make_scene
from eadp.pocket.things.view import View

__all__ = [
    "EVENTS",
    "KINDS",
    "LARGE_SIDE",
    "SIDE",
    "SPLITS",
    "STYLES",
    "Clip",
    "Drawing",
    "Kind",
    "Question",
    "Scene",
    "Split",
    "Thing",
    "View",
    "clip_samples",
    "crop_five",
    "kinds",
    "make_caption",
    "make_clip",
    "make_question",
    "make_questions",
    "make_scene",
    "render",
    "render_clip",
    "samples",
    "scene_samples",
]
