"""Thousands of random settings: each is refused with a sentence, or selects as many tokens as the prompt has places."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.fuzzed_settings import random_settings

from eadp.core import TextGuide
from eadp.models.layout import ImageLayout
from eadp.models.vision_call import EncodedImage, TowerRows
from eadp.runtime.choose import Budget, Chooser
from eadp.runtime.kept_columns import kept_slots
from eadp.serve.request import MAX_MESSAGE_LENGTH, Request, ServerSettings

GRID, WIDTH, LAYERS = (6, 6), 16, 4
FAMILIES = {"llava": ("renumber",), "qwen2_5_vl": ("renumber", "keep")}


def server_of(family: str) -> ServerSettings:
    vision = SimpleNamespace(model_type="clip_vision_model", num_hidden_layers=LAYERS, num_attention_heads=2)
    if family.startswith("qwen"):
        vision = SimpleNamespace(model_type="qwen", depth=LAYERS, num_heads=2, spatial_merge_size=2)
    config = SimpleNamespace(eadp={"keep": 9}, model_type=family, vision_config=vision, vision_feature_layer=-2)
    return ServerSettings.from_config(config, FAMILIES[family])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_is_accepted_or_refused_with_a_sentence(family: str, seed: int) -> None:
    generator, server = random.Random(seed), server_of(family)
    accepted, lengths = 0, []
    for _ in range(750):
        settings = random_settings(generator)
        try:
            request = server.build_request(settings)
        except ValueError as error:
            lengths.append(len(str(error)))
            continue
        accepted += 1
        assert Request.from_tensor(request.to_tensor()) == request, settings
        assert 1 <= request.count_sent(36) <= 36, settings
    assert 100 < accepted < 600
    assert min(lengths) > 10
    assert max(lengths) <= MAX_MESSAGE_LENGTH


class Encoder:
    """A guide with two words and a pooled vector, whatever the question."""

    space = "language"
    sign = -1.0

    def encode(self, question: str, layout: str = "words") -> TextGuide:
        generator = torch.Generator().manual_seed(len(question))
        return TextGuide(torch.randn(2, WIDTH, generator=generator), torch.randn(WIDTH, generator=generator))

    def align(self, states: torch.Tensor) -> torch.Tensor:
        return states


class Vision:
    """A vision side whose projector changes nothing."""

    square_grids_only = False

    def project(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def arrange(self, layout: ImageLayout, cells: torch.Tensor) -> torch.Tensor:
        return layout.arrange(cells)


@pytest.mark.parametrize("blank", [False, True])
def test_what_is_accepted_selects_as_many_tokens_as_the_prompt_has_places(blank: bool) -> None:
    """A blank image is the case in which scores, distances and variances vanish."""
    generator, server = random.Random(7), server_of("llava")
    layout = ImageLayout.contiguous([GRID])
    features = torch.randn(len(layout), WIDTH, generator=torch.Generator().manual_seed(0))
    features = torch.ones_like(features) if blank else features
    image = EncodedImage(
        layout,
        tower_rows=TowerRows(features, features[:1]),
        tower_features=features,
        padding=torch.zeros(len(layout), dtype=torch.bool),
    )
    tried: dict[str, int] = {}
    while len(tried) < 8 or min(tried.values()) < 12:
        settings = random_settings(generator)
        try:
            request = server.build_request(settings)
        except ValueError:
            continue
        method: Any = request.method
        if not request.prunes or "vision_attention" in method.needs or request.keeps_all(len(layout)):
            continue
        tried[method.name] = tried.get(method.name, 0) + 1
        chooser = Chooser(method, Encoder() if request.reads_question else None, Vision(), newlines=request.newlines)
        text = None if chooser.guide is None else chooser.encode_question(request.question, features.device)
        selection = chooser.select(Budget([image], features, text)).selection
        kept = kept_slots(layout, selection.indices, chooser.newlines, selection.newlines)
        assert int(kept.sum()) == request.count_sent(len(layout)), settings
