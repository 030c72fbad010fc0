"""The models for the world of things: what training computes is what the assembled LLaVA computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import LlavaForConditionalGeneration

from eadp.models.prompt import build_inputs
from eadp.pocket.smol import CHAT_TEMPLATE as CHAT_ML_TEMPLATE
from eadp.pocket.text import CHAT_TEMPLATE, IMAGE
from eadp.pocket.things.llava import build_llava, build_processor
from eadp.pocket.things.model import build_language_model
from eadp.pocket.things.questions import make_questions
from eadp.pocket.things.render import GRID, render
from training.things import tower
from training.things.packing import CHAT_ML, IGNORED, VICUNA, answer_logits
from training.things.reader import Reader
from training.things.text import world_tokenizer
from training.things.whitening import fold
from training.things.windows import draw_scenes


@pytest.mark.parametrize(("chat", "template"), [(VICUNA, CHAT_TEMPLATE), (CHAT_ML, CHAT_ML_TEMPLATE)])
def test_the_assembled_model_gives_the_logits_of_the_training(chat, template):
    torch.manual_seed(0)
    tokenizer = world_tokenizer()
    if chat is CHAT_ML:  # SmolLM2's tokenizer puts no token before a text.
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    reader = Reader(build_language_model(len(tokenizer)).eval(), tokenizer, chat)
    model = build_llava(reader.model, tokenizer)
    assert type(model) is LlavaForConditionalGeneration
    model.model.multi_modal_projector.load_state_dict(fold(reader.projector.state_dict()))
    batch = draw_scenes("validation", 0, 1)
    (view,) = batch.views
    (question,) = make_questions(view, np.random.default_rng(0), 1)
    text = reader.packer.pack([[question]], batch.views)
    everything = torch.arange(GRID * GRID)[None]
    with torch.no_grad():
        visual = reader.projector(tower.encode(model.model.vision_tower, batch.pixels, batch.positions)[:, 1:])
        (states,) = reader.packer.hidden_states(reader.model, visual, everything, text)
        trained = answer_logits(reader.model, states, text)[0]
        inputs = build_inputs(build_processor(tokenizer, template), [render(view.scene).image], [question.text])
        assembled = model(**inputs).logits[0, -1]
    question_ids = text.ids[0, : int((text.labels[0] != IGNORED).int().argmax()) + 1]
    assert torch.equal(inputs["input_ids"][0, -len(question_ids) :], question_ids)
    assert (inputs["input_ids"] == tokenizer.convert_tokens_to_ids(IMAGE)).sum() == GRID * GRID
    torch.testing.assert_close(assembled, trained, atol=1e-4, rtol=1e-3)


def test_a_tokenizer_without_a_token_for_images_gets_one(monkeypatch):
    tokenizer = world_tokenizer()
    language_model = build_language_model(len(tokenizer))
    before = language_model.get_input_embeddings().weight.clone()
    monkeypatch.setattr("eadp.pocket.llava.IMAGE", "<frame>")
    model = build_llava(language_model, tokenizer)
    table = model.get_input_embeddings().weight
    assert len(table) == len(tokenizer) == len(before) + 1
    assert torch.equal(table[:-1], before)
    assert model.config.image_token_id == tokenizer.convert_tokens_to_ids("<frame>") == len(before)
