"""Read the user's question from the ids of a prompt."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eadp.models.guides.base import tokenizer_of
from eadp.models.markup import Markup
from eadp.models.turns import find_known_format, learn_turns

PLACEHOLDER_IDS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


def question_of(input_ids: Tensor, processor: Any, model_config: Any) -> str:
    """Read the text of the last user turn.

    It leaves out other turns, tool responses, the system prompt, the template's own text, special tokens, and
    placeholders of images and videos with the text that processors write around them. The turns are found by what the
    chat template of the processor writes around them; if there is no template, or the prompt does not follow it, by the
    known conversation formats. If none of these is found, the whole text is the question. Templates that write the
    system prompt into the user turn without marking it (Gemma) leave it in the question.

    Args:
        input_ids: L, the ids of one prompt, without padding.
        processor: The processor or tokenizer.
        model_config: The configuration of the model, with the ids of its placeholders.

    Returns:
        The question; "" if the turn has only images.

    Raises:
        ValueError: If there is no processor, or `input_ids` has more than one dimension.
    """
    if processor is None:
        raise ValueError(
            "the question cannot be read from the ids without a tokenizer: pass processor=, or question= with the text"
        )
    if input_ids.ndim != 1:
        raise ValueError(f"input_ids must be one row of ids, got shape {tuple(input_ids.shape)}")
    tokenizer = tokenizer_of(processor)
    markup = Markup(tokenizer)
    text = markup.read(input_ids.tolist(), {getattr(model_config, name, None) for name in PLACEHOLDER_IDS})
    turns = learn_turns(processor if getattr(processor, "chat_template", None) else tokenizer, markup)
    if turns is None or turns.first_opening(text) is None:
        turns = find_known_format(text, markup)
    return markup.tidy(text if turns is None else turns.last(text))
