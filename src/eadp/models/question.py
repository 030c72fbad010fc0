"""What the user asked, read back from the ids that the model was given."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from torch import Tensor

from eadp.models.guides.base import tokenizer_of


class Turns(NamedTuple):
    """How a chat template marks a user's turn: what opens it and what closes it, as regular expressions."""

    opens: str
    closes: str


# Told apart by what opens a turn, special tokens first: plain words such as "USER:" may also be a user's own.
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

# What processors write around the placeholders of images and frames.
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
    """The text of the last user turn in one row of ids, without padding; "" where that turn is only images.

    Cut away: other turns, the system prompt, the template's wording, special tokens, placeholders of images and videos
    and what processors write around them. Where no template is recognised, the whole text is the question.
    Templates that write the system prompt into the user's turn (Gemma) leave it there: nothing marks it.
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
        # An opening inside an open turn is the user's own word, so each search starts where the last turn closed.
        while opening := opens.search(text, position):
            closing = closes.search(text, opening.end())
            position = closing.start() if closing else len(text)
            turn = text[opening.end() : position]
        if turn is not None:
            return turn
    return text


def _tidy(turn: str, tokenizer: Any) -> str:
    turn = WORDING.sub(" ", turn)
    # Only those that look like markup: some tokenizers pad with a plain "!", which may be the user's own.
    markup = [token for token in _special_tokens(tokenizer) if token.startswith(("<", "["))]
    if markup:
        turn = re.sub("|".join(map(re.escape, sorted(markup, key=len, reverse=True))), " ", turn)
    return re.sub(r"[ \t]*\n\s*", "\n", re.sub(r"[ \t]+", " ", turn)).strip()


def _special_tokens(tokenizer: Any) -> set[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return {str(token) for token in added if token.special} | set(map(str, tokenizer.all_special_tokens))
