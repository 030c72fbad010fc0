"""The training on clips: what is drawn, which tokens are kept, and what the tower sees of them."""

from __future__ import annotations

import pytest
import torch

from eadp.models.prompt import build_clip_inputs
from eadp.pocket.text import CHAT_TEMPLATE
from eadp.pocket.things.clip_model import FRAME_GRID, build_clip_model, build_clip_processor
from eadp.pocket.things.clips import make_clip
from eadp.pocket.things.llava import build_llava, build_processor
from eadp.pocket.things.model import build_language_model, build_tower
from eadp.pocket.things.parts import load_module
from eadp.pocket.things.render import GRID, render, render_clip
from training.language import gather_tokens
from training.things.clips import FRAMES, choose_tokens, draw_clips, encode_clips
from training.things.mentions import UNKNOWN
from training.things.packing import VICUNA
from training.things.reader import Reader
from training.things.text import world_tokenizer
from training.things.tower import Tally

CELLS = FRAMES * FRAME_GRID**2


@pytest.fixture(scope="module")
def batch():
    return draw_clips("train", 0, 3)


@pytest.fixture(scope="module")
def parts():
    """A model with random weights, and its tokenizer."""
    torch.manual_seed(0)
    tokenizer = world_tokenizer()
    language = build_language_model(len(tokenizer))
    return build_llava(language, tokenizer), language, tokenizer


def test_frames_are_rendered_as_scenes_of_their_own():
    clip = make_clip("train", 3, FRAMES)
    for frame, drawing in zip(clip.frames, render_clip(clip.frames), strict=True):
        assert (drawing.pixels == render(frame).pixels).all()


def test_the_thing_in_question_is_where_its_boxes_are(batch):
    for number, question in enumerate(batch.questions):
        clip = make_clip("train", number, FRAMES)
        assert question.text == clip.question
        for frame, box in enumerate(clip.boxes):
            cells = batch.actor[number, frame].nonzero()[:, 0]
            assert bool(len(cells)) == (box is not None)
            if box is not None:
                top, left, bottom, right = (int(edge * FRAME_GRID) for edge in box)
                down, across = cells // FRAME_GRID, cells % FRAME_GRID
                assert left <= across.min() <= across.max() <= right
                assert top <= down.min() <= down.max() <= bottom


def test_answers_have_places_unless_they_are_directions():
    clips = draw_clips("train", 0, 12)
    for question, place in zip(clips.questions, clips.places, strict=True):
        assert (place == (UNKNOWN, UNKNOWN)) == (question.kind == "moves")
        assert question.kind == "moves" or all(0 <= side < GRID for side in place)
    assert len(set(clips.places)) > 6


def test_the_thing_in_question_is_kept_more_often(batch):
    torch.manual_seed(0)
    keep = choose_tokens(batch, 144)
    assert keep.shape == (3, 144)
    assert (keep.diff(dim=1) > 0).all()
    kept = torch.zeros(3, CELLS).scatter(1, keep, 1).bool()
    actor, other = batch.actor.flatten(1), ~batch.shown.flatten(1)
    assert kept[actor].float().mean() > 2 * kept[other].float().mean()


@torch.no_grad()
def test_with_all_tokens_the_tower_sees_what_the_model_for_clips_sees(parts):
    model, _, tokenizer = parts
    clip = make_clip("train", 0, FRAMES)
    processor = build_processor(tokenizer, CHAT_TEMPLATE)
    tower, projector = model.model.vision_tower, model.model.multi_modal_projector
    seen = encode_clips(tower, draw_clips("train", 0, 1), torch.arange(CELLS)[None])
    made = build_clip_model(model, tokenizer)
    frames = [drawing.image for drawing in render_clip(clip.frames)]
    pixels = build_clip_inputs(made, build_clip_processor(processor), frames, clip.question)
    expected = made.model.get_video_features(
        pixels["pixel_values_videos"], vision_feature_layer=-2, vision_feature_select_strategy="default"
    ).pooler_output
    torch.testing.assert_close(projector(seen), expected, atol=2e-3, rtol=2e-3)


@torch.no_grad()
def test_the_tower_sees_kept_tokens_much_as_it_sees_all(batch):
    tower = build_tower()
    tower.load_state_dict(load_module("vision", "tower"), strict=False)
    keep = choose_tokens(batch, 96)
    whole = encode_clips(tower, batch, torch.arange(CELLS).expand(3, -1))
    some, expected = encode_clips(tower, batch, keep), gather_tokens(whole, keep)
    error = (some - expected).square().mean()
    assert error < 0.25 * (expected - expected.mean((0, 1))).square().mean()
    assert error < 0.25 * (some - expected.roll(1, 1)).square().mean()


def test_a_language_model_learns_and_is_measured_on_clips(parts, batch):
    _, language, tokenizer = parts
    reader = Reader(language, tokenizer, VICUNA)
    keep = choose_tokens(batch, 32)
    visual = torch.randn(3, 32, language.config.hidden_size, requires_grad=True)
    losses = reader.clip_losses(visual, keep, batch)
    sum(losses.values()).backward()
    assert visual.grad is not None
    assert losses["named"] == 0 < losses["found"]
    tally = Tally()
    with torch.no_grad():
        reader.tally_clips(tally, visual, keep, batch)
    assert tally.total["all"] == 3
    assert set(tally.total) == {"all", *(question.kind for question in batch.questions)}
