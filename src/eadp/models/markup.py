"""A prompt as text in which each special token is one character, so that it differs from what a user wrote."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

IMAGE = "\U000effff"
"""Stands for the placeholders of an image or a video."""

FIRST_SPECIAL = 0xF0000
SPECIALS = f"{chr(FIRST_SPECIAL)}-{chr(0x10FFFD)}"
"""The private characters that stand for special tokens, as a range of a regular expression."""

_MARKUP = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")

# The text that processors write around the placeholders of images and frames.
_WORDING = re.compile(
    r"Here is the original image\s*<start_of_image>.*?crops to help you see better"
    r"(?:\s*<start_of_image>(?:\s*<end_of_image>)?)*"
    r"|You are provided the following series of [\w-]+ frames from a [\d:]+ \[H:MM:SS\] video\."
    r"|\bFrame from \d+:\d+:"
    r"|\bFrame-?\d+:\s*(?=<img>)"
    r"|<\d+(?:\.\d+)? seconds>"
    r"|<row_\d+_col_\d+>|<(?:global-img|fake_token_around_image|image|video)>",
    re.DOTALL,
)


class Markup:
    """The added tokens of a tokenizer that look like markup, and a private character for each that occurs."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        # Only those that look like markup: some tokenizers pad with a plain "!", which may be part of the user's text.
        self._contents = {index: str(token) for index, token in added.items() if _MARKUP.fullmatch(str(token))}
        self._known = set(self._contents.values())
        special = {str(token) for token in added.values() if token.special} | set(
            map(str, tokenizer.all_special_tokens)
        )
        self._special = {content for content in special if content.startswith(("<", "["))}
        self._characters: dict[str, str] = {}

    def read(self, ids: Sequence[int], placeholders: Collection[int | None]) -> str:
        """Decode a prompt.

        Args:
            ids: The ids of the prompt.
            placeholders: The ids of the placeholders of images and videos.

        Returns:
            The text, with one character per special token, and one per run of placeholders.
        """

        def kind(token: int) -> str:
            return IMAGE if token in placeholders else self._contents.get(token, "")

        parts = []
        for content, run in groupby(ids, kind):
            if not content:
                text = self._tokenizer.decode(list(run), skip_special_tokens=False, clean_up_tokenization_spaces=False)
                parts.append(text)
            else:
                parts.append(IMAGE if content == IMAGE else self._character(content) * len(list(run)))
        return "".join(parts)

    def encode(self, text: str) -> str:
        """Replace the special tokens in a text that a template wrote by their characters."""
        return _MARKUP.sub(lambda found: self._character(found[0]) if found[0] in self._known else found[0], text)

    def tidy(self, turn: str) -> str:
        """Remove special tokens, placeholders and the text that processors write around them from a user turn."""
        contents = {character: content for content, character in self._characters.items()}
        turn = _WORDING.sub(" ", "".join(contents.get(character, character) for character in turn))
        if self._special:
            turn = re.sub("|".join(map(re.escape, sorted(self._special, key=len, reverse=True))), " ", turn)
        turn = turn.replace(IMAGE, " ")
        return re.sub(r"[ \t]*\n\s*", "\n", re.sub(r"[ \t]+", " ", turn)).strip()

    def _character(self, content: str) -> str:
        return self._characters.setdefault(content, chr(FIRST_SPECIAL + len(self._characters)))


def is_special(text: str) -> bool:
    """Whether a text begins with the character of a special token."""
    return bool(text) and ord(text[0]) >= FIRST_SPECIAL
