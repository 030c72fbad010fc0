"""The paper's claims on photographs: things pasted on other photographs, as the model for photographs sees them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from eadp.evaluate.claims import Asked, mark_words
from eadp.evaluate.photo_benchmark import QUESTION, Projector, encode_scene, tower_grid
from eadp.evaluate.photo_data import PhotoData
from eadp.models.efficientnet_lite import EfficientNetLiteModel
from eadp.models.guides import ClassifierGuide
from eadp.pocket.things.questions import pick
from eadp.pocket.things.wording import AFTER, BEFORE


@torch.inference_mode()
def ask(tower: EfficientNetLiteModel, project: Projector, data: PhotoData) -> Iterator[Asked]:
    """Ask where the thing of each scene is: by its own word and by a wider one, briefly and in a long instruction.

    Scenes of one thing have the same number: they are not independent.

    Args:
        tower: The tower.
        project: Makes visual tokens of the tower's last hidden state: N×d → N×w.
        data: The photographs.
    """
    guide = ClassifierGuide(tower.classifier)
    numbers: dict[str, int] = {}
    for scene in data.scenes():
        number = numbers.setdefault(scene.thing.name, len(numbers))
        inside, _ = scene.cells(tower_grid(tower))
        if not inside.any():
            continue
        tokens = encode_scene(tower, project, guide, scene)
        for turn, word in enumerate(scene.thing.words):
            rng = np.random.default_rng((number, turn))
            short = QUESTION.format(word=word)
            for question in (short, f"{pick(rng, BEFORE)} {short} {pick(rng, AFTER)}"):
                text = guide.encode(question)
                # An instruction may have the letters of the word, too: there is a hat in "what".
                start = question.index(short) + QUESTION.index("{word}")
                yield Asked(
                    scene=number,
                    dense=question != short,
                    tokens=tokens,
                    text=text,
                    things=inside[None],
                    names_all=True,
                    mentioned=mark_words(text.words or (), question, [(start, start + len(word))]),
                )
