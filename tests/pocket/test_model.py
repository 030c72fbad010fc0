"""The pocket model that ships with the package: plain transformers classes, tokenizer, tower, answers, text guide."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from eadp import pocket
from eadp.pocket.model import GRID, encode_patches
from eadp.pocket.samples import samples
from eadp.pocket.storage import WEIGHTS
from eadp.pocket.world import COLOURS, SHAPES, WRITINGS


@pytest.fixture(scope="module")
def loaded():
    return pocket.load()


def answers(model, processor, questions, images=None):
    inputs = processor(
        text=[sample.prompt for sample in questions],
        images=images or [sample.image for sample in questions],
        padding=True,
        return_tensors="pt",
    )
    out = model.generate(**inputs, do_sample=False)
    return processor.batch_decode(out[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)


def test_the_model_is_a_plain_llava_in_small_files(loaded):
    model, processor = loaded
    assert type(model) is LlavaForConditionalGeneration
    assert type(processor) is LlavaProcessor
    assert sum(file.stat().st_size for file in WEIGHTS.iterdir()) < 25e6
    assert model.config.vision_feature_layer == -2


def test_every_word_of_the_world_is_one_token_and_any_text_round_trips(loaded):
    tokenizer = loaded[1].tokenizer
    for word in (*COLOURS, *SHAPES, *WRITINGS, "yes", "no", "left", "right"):
        assert len(tokenizer(f" {word}", add_special_tokens=False).input_ids) == 1
    texts = [sample.question for sample in samples("validation", 40)] + ["Où est le chat, 猫 or 🐈?"]
    for text in texts:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_the_chat_template_formats_the_prompt_of_the_training(loaded):
    (sample,) = samples("validation", 1)
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": sample.question}]}
    assert loaded[1].apply_chat_template([message], add_generation_prompt=True) == sample.prompt


def test_an_image_has_one_token_per_patch(loaded):
    model, processor = loaded
    (sample,) = samples("validation", 1)
    inputs = processor(text=sample.prompt, images=sample.image, return_tensors="pt")
    assert (inputs.input_ids == model.config.image_token_id).sum() == GRID * GRID


def test_encode_patches_equals_the_towers_second_to_last_hidden_states(loaded):
    model, processor = loaded
    (sample,) = samples("validation", 1)
    tower, pixels = model.model.vision_tower, processor(text=sample.prompt, images=sample.image, return_tensors="pt")
    with torch.no_grad():
        states = tower(pixels.pixel_values, output_hidden_states=True).hidden_states
        torch.testing.assert_close(encode_patches(tower, pixels.pixel_values), states[-2])


def test_answers_depend_on_the_image(loaded):
    model, processor = loaded
    questions = list(samples("validation", 96))
    given = answers(model, processor, questions)
    right = sum(sample.is_correct(answer) for sample, answer in zip(questions, given, strict=True)) / len(questions)
    others = [sample.image for sample in questions[48:] + questions[:48]]
    blind = answers(model, processor, questions, images=others)
    guessed = sum(sample.is_correct(answer) for sample, answer in zip(questions, blind, strict=True)) / len(questions)
    assert right > 0.75
    assert guessed < 0.5


def test_questions_are_aligned_with_the_patches_of_their_things(loaded):
    model, processor = loaded
    guide, tower = pocket.guide(model, processor), model.model.vision_tower
    inside, outside = [], []
    for sample in samples("validation", 24, kinds=("colour", "shape", "side")):
        pixels = processor(text=sample.prompt, images=sample.image, return_tensors="pt").pixel_values
        with torch.no_grad():
            states = tower(pixels, output_hidden_states=True).hidden_states[-2][0, 1:]
        visual, pooled = guide.align(states), guide.encode(sample.question).pooled
        cosines = torch.cosine_similarity(visual, pooled[None], dim=-1).view(GRID, GRID)
        top, left, bottom, right = (round(edge * GRID) for edge in sample.boxes[0])
        within = torch.zeros(GRID, GRID, dtype=torch.bool)
        within[top:bottom, left:right] = True
        inside.append(cosines[within].mean())
        outside.append(cosines[~within].mean())
    assert torch.stack(inside).mean() > torch.stack(outside).mean() + 0.2


def test_a_folder_without_a_model_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="there is no pocket model in"):
        pocket.load(tmp_path)
