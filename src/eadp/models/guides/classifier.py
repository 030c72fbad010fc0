"""The classes of a classifying vision tower, for models with EfficientNet-Lite (`eadp.models.efficientnet_lite`)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eadp.core import TextGuide, TextLayout
from eadp.models.guides.base import Guide, Space
from eadp.models.guides.class_words import class_words


class ClassifierGuide(Guide):
    """The space of the tower's C classes, and two more axes that keep lengths from mattering.

    v = [e, √(1 − |e|²), 0], where e is the softmax over a cell's logits, each cell's with mean 0 and variance 1 over
    the classes. All v have length 1.

    t = [w, 0, 1], where w_c is the share of the word's uses that mean class c (`class_words`). Most words, such as
    "is" or "red", are words for no class: their t is orthogonal to every v, so that their maps are flat. A word for
    almost all classes ("object") has an almost flat map too, because e adds up to 1. pooled = [Σ w, 0, 1] over all
    words.

    `align` takes the tower's last hidden state, which has the probabilities of the classes. The sign is +1: cells that
    show the thing have a high cosine.
    """

    space: ClassVar[Space] = "tower"

    def __init__(self, classifier: nn.Linear, *, sign: float = 1.0) -> None:
        super().__init__(sign)
        if classifier.out_features > len(class_words().names):
            raise ValueError(
                f"the guide has words for the {len(class_words().names)} classes of ImageNet, but the vision tower has "
                f"{classifier.out_features}: pass a guide of your own"
            )
        self.classifier = classifier

    @torch.no_grad()
    def align(self, states: Tensor) -> Tensor:
        """Turn probabilities of classes into directions: […, d] → […, C + 2]."""
        probabilities = states[..., : self.classifier.out_features].float()
        logits = probabilities.clamp(min=torch.finfo(states.dtype).tiny).log()
        centred = logits - logits.mean(-1, keepdim=True)
        evidence = F.softmax(centred / centred.std(-1, keepdim=True).clamp(min=1e-6), -1)
        rest = (1 - (evidence**2).sum(-1, keepdim=True)).clamp(min=0).sqrt()
        return torch.cat((evidence, rest, torch.zeros_like(rest)), -1).to(states.dtype)

    def _encode(self, question: str, layout: TextLayout) -> TextGuide:
        weight, read = self._follow_model(), class_words().read(question)
        device = "cpu" if weight.device.type == "meta" else weight.device
        classes = self.classifier.out_features
        tokens = torch.zeros(len(read), classes + 2, dtype=weight.dtype)
        for row, word in zip(tokens, read, strict=True):
            for number, share in word.classes.items():
                if number < classes:
                    row[number] = share
        tokens[:, -1] = 1
        pooled = tokens.sum(0)
        pooled[-1] = 1
        return TextGuide(tokens.to(device), pooled.to(device), tuple(word.text for word in read), self.sign)

    def _follow_model(self) -> Tensor:
        return self.classifier.weight
