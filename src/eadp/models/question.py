"""Read the user's question from the ids of a prompt."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from torch import Tensor

from eadp.models.guides.base import tokenizer_of


class Turns(NamedTuple):
    """How a chat template marks a user turn: regular expressions for what opens and what closes it."""

    opens: str
    closes: str


# Those with special tokens come first: plain words such as "USER:" may be part of the user's text.
TEMPLATES = {
    "ChatML (Qwen, LLaVA-OneVision, InternVL)": Turns(r"<\|im_start\|>user\b", r"<\|im_end\|>|<\|im_start\|>"),
    "Idefics3, SmolVLM": Turns(
        r"(?:<\|im_start\|>|<\|begin_of_text\|>|<end_of_utterance>\s*)User:", r"<end_of_utterance>"
    ),
    "Llama 3": Turns(r"<\|start_header_id\|>user<\|end_header_id\|>", r"<\|eot_id\|>|<\|start_header_id\|>"),
    "Gemma": Turns(r"<start_of_turn>user\b", r"<end_of_turn>|<start_of_turn>"),
    "Phi": Turns(r"<\|user\|>", r"<\|end\|>|<\|assistant\|>"),
    "Mistral, Llama 2": Turns(r"\[INST\](?:\s*<<SYS>>.*?<</SYS>>)?", r"\[/INST\]"),
    "Vicuna (LLaVA-1.5)": Turns(r"\bUSER:", r"\bASSISTANT:"),
    "LLaVA-1": Turns(r"###\s*Human:", r"###\s*Assistant:"),
    "PaliGemma": Turns(r"<bos>(?:answer [a-z]{2} )?", r"\Z"),
}

# The text that processors write around the placeholders of images and frames.
WORDING = re.compile(
    r"Here is the original image\s*<start_of_image>.*?crops to help you see better"
    r"(?:\s*<start_of_image>(?:\s*<end_of_image>)?)*"
    r"|You are provided the following series of [\w-]+ frames from a [\d:]+ \[H:MM:SS\] video\."
    r"|\bFrame from \d+:\d+:"
    r"|\bFrame-?\d+:\s*(?=<img>)"
    r"|<\d+(?:\.\d+)? seconds>"
    r"|<row_\d+_col_\d+>|<(?:global-img|fake_token_around_image|image|video)>",
    re.DOTALL,
)

PLACEHOLDER_IDS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


def question_of(input_ids: Tensor, processor: Any, model_config: Any) -> str:
    """Read the text of the last user turn.

    It leaves out other turns, the system prompt, the template's own text, special tokens, and placeholders of images
    and videos with the text that processors write around them. If no template is recognised, the whole text is the
    question. Templates that write the system prompt into the user turn (Gemma) do not mark it, so it stays in the
    question.

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
    placeholders = {getattr(model_config, name, None) for name in PLACEHOLDER_IDS}
    ids = [token for token in input_ids.tolist() if token not in placeholders]
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return _tidy(_last_user_turn(text), tokenizer)


def _last_user_turn(text: str) -> str:
    for turns in TEMPLATES.values():
        opens, closes = re.compile(turns.opens, re.DOTALL), re.compile(turns.closes)
        turn, position = None, 0
        # An opening inside an open turn is part of the user's text, so each search starts where the last turn closed.
        while opening := opens.search(text, position):
            closing = closes.search(text, opening.end())
            position = closing.start() if closing else len(text)
            turn = text[opening.end() : position]
        if turn is not None:
            return turn
    return text


def _tidy(turn: str, tokenizer: Any) -> str:
    turn = WORDING.sub(" ", turn)
    # Only those that look like markup: some tokenizers pad with a plain "!", which may be part of the user's text.
    markup = [token for token in _special_tokens(tokenizer) if token.startswith(("<", "["))]
    if markup:
        turn = re.sub("|".join(map(re.escape, sorted(markup, key=len, reverse=True))), " ", turn)
    return re.sub(r"[ \t]*\n\s*", "\n", re.sub(r"[ \t]+", " ", turn)).strip()


def _special_tokens(tokenizer: Any) -> set[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return {str(token) for token in added if token.special} | set(map(str, tokenizer.all_special_tokens))
