"""A question as tokens: their ids, their text, and where a long question may be split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MID_CHARACTER, MID_WORD, NEW_WORD = range(3)


@dataclass(frozen=True)
class Pieces:
    """The M tokens of a question, without special ones.

    Attributes:
        ids: The token ids.
        words: The text of each token in the question. Tokens that share a character (the bytes of an emoji) all have
            that character.
        seams: How good a split before each token is: MID_CHARACTER < MID_WORD < NEW_WORD.
    """

    ids: list[int]
    words: list[str]
    seams: list[int]

    def segments(self, capacity: int) -> list[slice]:
        """Split into segments of at most `capacity` tokens, at a word boundary if one is in a segment's second half.

        An empty question is one empty segment.
        """
        spans, start = [], 0
        while len(self.ids) - start > capacity:
            cuts = range(start + (capacity + 1) // 2, start + capacity + 1)
            cut = max(cuts, key=lambda i: (self.seams[i], i))
            spans.append(slice(start, cut))
            start = cut
        return [*spans, slice(start, len(self.ids))]


def pieces_of(question: str, tokenizer: Any) -> Pieces:
    """Tokenize without BOS and EOS, even if the question's text contains one."""
    if not question:
        return Pieces([], [], [])
    has_offsets = bool(getattr(tokenizer, "is_fast", False))
    encoded = tokenizer(question, add_special_tokens=False, return_offsets_mapping=has_offsets)
    boundaries = {tokenizer.bos_token_id, tokenizer.eos_token_id}
    own = [i for i, token in enumerate(encoded["input_ids"]) if token not in boundaries]
    ids = [encoded["input_ids"][i] for i in own]
    if has_offsets:
        return _read_by_offsets(question, ids, [encoded["offset_mapping"][i] for i in own], tokenizer)
    return _read_by_pieces(ids, tokenizer)


def _read_by_offsets(question: str, ids: list[int], spans: list[tuple[int, int]], tokenizer: Any) -> Pieces:
    words, seams, covered = [], [], 0
    for token, (start, end) in zip(ids, spans, strict=True):
        span = question[start:end]
        words.append(span.strip() or _escaped(span or tokenizer.decode([token])))
        opens_word = start == 0 or question[start - 1].isspace() or span[:1].isspace()
        seams.append(MID_CHARACTER if start < covered else NEW_WORD if opens_word else MID_WORD)
        covered = max(covered, end)
    return Pieces(ids, words, seams)


def _read_by_pieces(ids: list[int], tokenizer: Any) -> Pieces:
    """Read tokens of SentencePiece without offsets, where "▁" begins a word."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    words = [token.replace("▁", " ").strip() or " " for token in tokens]
    return Pieces(ids, words, [NEW_WORD if token.startswith("▁") else MID_WORD for token in tokens])


def _escaped(space: str) -> str:
    return space.replace("\n", "\\n").replace("\t", "\\t") or " "
