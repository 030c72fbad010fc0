"""What the tower and the guide for photographs can do, measured on photographs that nobody trained on.

No language model answers here: the tower names the main thing of a photograph, and the guide's maps are compared with
the masks of things pasted on other photographs. `photo_questions` asks the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eadp.core import Relevance, VisualTokens
from eadp.core.types import Grid
from eadp.evaluate.auc import rank_auc
from eadp.evaluate.photo_data import Photo, PhotoData, Scene
from eadp.methods import EADP
from eadp.models.efficientnet_lite import PIXEL_MEAN, PIXEL_STD, EfficientNetLiteModel
from eadp.models.guides import ClassifierGuide
from eadp.models.guides.class_words import class_words

Projector = Callable[[Tensor], Tensor]

KEEP = 64
"""Tokens of 576 that EADP keeps in the measurement of what it keeps."""

NAMING_SIDES = (256, 384, 768)
"""Sides of the photographs to name: near the 224 pixels that the tower was trained at, and as in LLaVA."""

QUESTION = "Where is the {word}?"
"""The question about a scene."""

MAPS: dict[str, Callable[[Relevance], Tensor | None]] = {
    "guide": lambda relevance: relevance.similarity[relevance.similarity.std(1).argmax()],
    "relevance": lambda relevance: relevance.score,
    "smoothed": lambda relevance: relevance.smoothed,
    "polarized": lambda relevance: relevance.polarized,
}
"""The maps that are measured: the guide's map of the word that points most, and the steps of EADP after it."""


@dataclass(frozen=True)
class NamedPhoto:
    """What the tower called the main thing of a photograph.

    Attributes:
        source: The source of the photograph.
        file: Its file.
        side: The side in pixels to which it was scaled.
        has_views: Whether the smaller views had votes, as in LLaVA.
        word: A word for the thing.
        answer: The tower's name for it.
        is_right: Whether the answer is a name, a synonym or a wider word for the thing.
    """

    source: str
    file: str
    side: int
    has_views: bool
    word: str
    answer: str
    is_right: bool


@dataclass(frozen=True)
class MapResult:
    """How well the maps of one question find the thing in one scene.

    Attributes:
        ground: The source of the ground.
        file: The file of the stamp.
        word: The word in the question.
        is_general: Whether it is a word for many classes instead of the caption's own word.
        auc: For each of `MAPS`, the chance that a cell inside the thing scores higher than one outside.
        area: The share of the scene's cells that are inside the thing.
        kept: The share of the tokens that EADP keeps that are inside the thing.
    """

    ground: str
    file: str
    word: str
    is_general: bool
    auc: dict[str, float]
    area: float
    kept: float


def names_thing(answer: str, classes: Collection[int], widest: int | None = None) -> bool:
    """Whether a text names a thing: by the name of one of its classes, a synonym, or a word above them.

    Args:
        answer: The text, such as "a tabby cat".
        classes: The classes that are right.
        widest: Words for more classes than this name nothing; None to allow all of them.
    """
    return any(
        not word.classes.keys().isdisjoint(classes)
        for word in class_words().read(answer)
        if widest is None or len(word.classes) <= widest
    )


def to_pixels(image: Image.Image, side: int) -> Tensor:
    """Scale an image to a square and normalise it for the tower: 1×3×side×side."""
    scaled = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
    values = torch.from_numpy(np.array(scaled)).permute(2, 0, 1)[None] / 255
    return (values - PIXEL_MEAN) / PIXEL_STD


@torch.inference_mode()
def name_photos(tower: EfficientNetLiteModel, photos: Iterable[Photo], sides: Sequence[int]) -> list[NamedPhoto]:
    """Let the tower name the main thing of photographs.

    At each side its answer is the class with the largest mean logit over the cells. At the tower's own side it answers
    once more as LLaVA sees it, with the votes of the smaller views: the class with the largest mean probability.

    Args:
        tower: The tower.
        photos: The photographs.
        sides: The sides in pixels to which each photograph is scaled.
    """
    named = []
    own, classes = tower.config.image_size, tower.config.num_classes
    for photo in photos:
        image = photo.on_white()
        evidence = {(side, False): tower.classifier(tower(to_pixels(image, side)).pooler_output)[0] for side in sides}
        described = tower(to_pixels(image, own), output_hidden_states=True).hidden_states[-1]
        evidence[own, True] = described[0, :, :classes].mean(0)
        for (side, has_views), classes_seen in evidence.items():
            answer = class_words().names[int(classes_seen.argmax())]
            is_right = names_thing(answer, photo.classes)
            named.append(NamedPhoto(photo.source, photo.name, side, has_views, photo.word, answer, is_right))
    return named


def tower_grid(tower: EfficientNetLiteModel) -> Grid:
    """The rows and columns of the tower's cells."""
    side = tower.config.image_size // tower.config.patch_size
    return side, side


def encode_scene(
    tower: EfficientNetLiteModel, project: Projector, guide: ClassifierGuide, scene: Scene
) -> VisualTokens:
    """Encode a scene as the model does.

    Args:
        tower: The tower.
        project: Makes visual tokens of the tower's last hidden state: N×d → N×w.
        guide: The guide that will read the questions.
        scene: The scene.
    """
    output = tower(to_pixels(scene.image, tower.config.image_size), output_hidden_states=True)
    described = output.hidden_states[-1][0]
    return VisualTokens(project(described), guide.align(described), [tower_grid(tower)])


@torch.inference_mode()
def measure_maps(
    tower: EfficientNetLiteModel, project: Projector, scenes: Iterable[Scene], **settings: Any
) -> list[MapResult]:
    """Measure the maps of "Where is the …?" on scenes, with the caption's word and with a word for many classes.

    Args:
        tower: The tower.
        project: Makes visual tokens of the tower's last hidden state: N×d → N×w.
        scenes: The scenes. Those in which the thing fills no cell are skipped.
        **settings: Settings of EADP.
    """
    guide, method = ClassifierGuide(tower.classifier), EADP(**{"keep": KEEP, **settings})
    results = []
    for scene in scenes:
        inside, outside = scene.cells(tower_grid(tower))
        if not inside.any() or not outside.any():
            continue
        tokens = encode_scene(tower, project, guide, scene)
        for word in scene.thing.words:
            selection = method.select(tokens, guide.encode(QUESTION.format(word=word)))
            auc = {
                name: rank_auc(found, inside, outside)
                for name, read in MAPS.items()
                if selection.relevance is not None and (found := read(selection.relevance)) is not None
            }
            results.append(
                MapResult(
                    scene.ground,
                    scene.thing.name,
                    word,
                    word != scene.thing.word,
                    auc,
                    inside.float().mean().item(),
                    inside[selection.indices].float().mean().item(),
                )
            )
    return results


def run(tower: EfficientNetLiteModel, project: Projector, data: PhotoData) -> tuple[list[NamedPhoto], list[MapResult]]:
    """Run both measurements on all photographs and all scenes."""
    return name_photos(tower, data.photos(), NAMING_SIDES), measure_maps(tower, project, data.scenes())
