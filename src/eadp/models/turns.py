"""Find the last user turn of a prompt: by what its chat template writes around turns, or by known formats."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

from eadp.models.markup import IMAGE, SPECIALS, Markup, is_special

ANY_SPECIAL = f"[{SPECIALS}]"


class Span(NamedTuple):
    """A part of a text."""

    start: int
    end: int


@dataclass(frozen=True)
class Turns:
    """What a conversation format writes around the text of a user. White space is not compared.

    Attributes:
        opens: What begins a user turn.
        closes: What ends it, one of these.
        start: What comes before the text of the first user turn if the user gives no system prompt.
        tool: What encloses a tool response that is written as a user turn, if there is such a thing.
        system: What encloses a system prompt that is written into the first user turn, if there is such a thing.
        only_at_start: Whether a prompt of this format begins with a user turn.
    """

    opens: str
    closes: tuple[str, ...]
    start: str = ""
    tool: tuple[str, str] | None = None
    system: tuple[str, str] | None = None
    only_at_start: bool = False

    def encoded(self, markup: Markup) -> Turns:
        """The same format for texts in which special tokens are characters."""
        tool = None if self.tool is None else (markup.encode(self.tool[0]), markup.encode(self.tool[1]))
        return replace(self, opens=markup.encode(self.opens), closes=tuple(map(markup.encode, self.closes)), tool=tool)

    @property
    def is_plain(self) -> bool:
        """Whether a user can write what separates the turns, because it has no special tokens."""
        return not is_special(self.opens) and not is_special(self.closes[0])

    def first_opening(self, text: str) -> int | None:
        """Where the first user turn begins, or None if the text does not follow this format."""
        openings = self._openings(text)
        if not openings or (self.only_at_start and self.is_plain and not _is_blank(text[: openings[0].start])):
            return None
        return openings[0].start

    def is_complete(self, text: str) -> bool:
        """Whether the text ends where an answer begins."""
        closings = self._closings(text)
        return bool(closings) and _is_blank(text[closings[-1].end :])

    def last(self, text: str) -> str:
        """The text of the last user turn that is no tool response; "" if there is none."""
        for span in reversed(self._spans(text)):
            turn = text[span.start : span.end]
            if self.tool is not None:
                turn, responses = _enclosed(*self.tool).subn(" ", turn)
                if responses and _is_blank(turn):
                    continue
            return turn if self.system is None else _enclosed(*self.system).sub(" ", turn, count=1)
        return ""

    def _spans(self, text: str) -> list[Span]:
        openings, closings = self._openings(text), self._closings(text)
        spans, position = list[Span](), 0
        # An opening inside an open turn is part of the user's text, so each search starts where the last turn closed.
        while opening := next((each for each in openings if each.start >= position), None):
            closing = next((each for each in closings if each.start >= opening.end), None)
            position = len(text) if closing is None else closing.start
            spans.append(Span(opening.end, position))
        if spans and self.is_plain:
            if self.is_complete(text):
                # The prompt ends with this closing, so those before it in the same turn are the user's words.
                spans[-1] = Span(spans[-1].start, closings[-1].start)
            spans = [self._without_system_prompt(text, span, openings) for span in spans]
        return spans

    def _without_system_prompt(self, text: str, span: Span, openings: list[Span]) -> Span:
        """Where a system prompt contains the opening, the turn begins with the last opening before its first image."""
        image = text.find(IMAGE)
        if _is_blank(text[: openings[0].start]) or not span.start <= image < span.end:
            return span
        return Span(max(each.end for each in openings if each.end <= image), span.end)

    def _openings(self, text: str) -> list[Span]:
        found = [Span(*match.span()) for match in _pattern(self.opens).finditer(text)]
        if is_special(self.closes[0]) and not is_special(self.opens):
            # What is written between turns ends with a special token, so an opening elsewhere is somebody's word.
            found = [span for span in found if _follows_special(text, span.start)]
        if self.start and (start := re.match(rf"\s*{ANY_SPECIAL}?\s*{_pattern(self.start).pattern}", text)):
            found = [Span(0, start.end()), *(span for span in found if span.start >= start.end())]
        return found

    def _closings(self, text: str) -> list[Span]:
        found = [Span(*match.span()) for closes in self.closes for match in _pattern(closes).finditer(text)]
        return sorted(found)


@dataclass(frozen=True)
class Prefix(Turns):
    """PaliGemma's format: images, then a prefix that ends with a line break; in training, an answer and `<eos>`."""

    def first_opening(self, text: str) -> int | None:
        start = super().first_opening(text)
        return start if start and _is_blank(text[:start]) else None

    def last(self, text: str) -> str:
        """The prefix, without its task and the answer."""
        turn = text[self._openings(text)[0].end :]
        # Both the prefix and an answer may have several lines. None of an answer may become part of the question.
        prefix = turn.partition("\n")[0] if self._closings(turn) else turn.rpartition("\n")[0] or turn
        return re.sub(r"\A\s*answer [a-z]{2} ", "", prefix)


KNOWN_FORMATS: dict[str, Turns] = {
    "ChatML (Qwen, LLaVA-OneVision, InternVL)": Turns(
        "<|im_start|>user", ("<|im_end|>", "<|im_start|>"), tool=("<tool_response>", "</tool_response>")
    ),
    "Idefics3, SmolVLM": Turns("User:", ("<end_of_utterance>",)),
    "Llama 3": Turns("<|start_header_id|>user<|end_header_id|>", ("<|eot_id|>", "<|start_header_id|>")),
    "Gemma": Turns("<start_of_turn>user", ("<end_of_turn>", "<start_of_turn>")),
    "Phi": Turns("<|user|>", ("<|end|>", "<|assistant|>")),
    "PaliGemma": Prefix("<bos>", ("<eos>",)),
    "Mistral, Llama 2": Turns("[INST]", ("[/INST]",), system=("<<SYS>>", "<</SYS>>"), only_at_start=True),
    "Vicuna (LLaVA-1.5)": Turns("USER:", ("ASSISTANT:",)),
    "LLaVA-1": Turns("### Human:", ("### Assistant:",)),
}


def find_known_format(text: str, markup: Markup) -> Turns | None:
    """Find the conversation format of a prompt; None if it is none of the known ones."""
    formats = [turns.encoded(markup) for turns in KNOWN_FORMATS.values()]
    # What is still written out is no token of this tokenizer, so it can only be the user's text.
    formats = [turns for turns in formats if not any(part.startswith("<") for part in (turns.opens, turns.closes[0]))]
    found = {turns: start for turns in formats if (start := turns.first_opening(text)) is not None}
    plain = {turns: start for turns, start in found.items() if turns.is_plain}
    return next(
        (turns for turns in found if turns not in plain),
        min(plain, key=lambda turns: (not turns.is_complete(text), plain[turns]), default=None),
    )


# The messages of a conversation that a template is tried on: words that no template writes itself.
USER, ANSWER, NEXT_USER, NEXT_ANSWER = "eadpuser", "eadpanswer", "eadpnextuser", "eadpnextanswer"
SYSTEM, TOOL = "eadpsystem", "eadptool"
ROLES = {USER: "user", NEXT_USER: "user", ANSWER: "assistant", NEXT_ANSWER: "assistant", SYSTEM: "system", TOOL: "tool"}


def learn_turns(processor: Any, markup: Markup) -> Turns | None:
    """Learn from a chat template what it writes around user turns.

    Args:
        processor: A processor or tokenizer, with or without a chat template.
        markup: The special tokens of its tokenizer.

    Returns:
        The format; None if there is no template, or it does not mark user turns.
    """
    ended = _render(processor, markup, USER, ANSWER, NEXT_USER, NEXT_ANSWER)
    asking = _render(processor, markup, USER, ANSWER, NEXT_USER, add_generation_prompt=True)
    if ended is None or asking is None:
        return None
    before, user_to_answer, answer_to_user, _, after_answer = ended
    opens = answer_to_user.removeprefix(_common_start(answer_to_user, after_answer)).strip()
    closes = re.match(rf"{ANY_SPECIAL}|[^{SPECIALS}]*", _common_start(user_to_answer, asking[-1]).strip())
    if not opens or closes is None or not closes[0].strip():
        return None
    turns = Turns(opens, (closes[0].strip(), opens[0]) if is_special(opens) else (closes[0].strip(),))
    if turns.is_plain:
        turns = replace(turns, start=re.sub(rf"\A\s*{ANY_SPECIAL}?", "", before))
    tool = _render(processor, markup, USER, ANSWER, TOOL, add_generation_prompt=True)
    system = _render(processor, markup, SYSTEM, USER)
    return replace(
        turns,
        tool=None if tool is None else _learn_enclosure(turns, tool[2], _pattern(turns.closes[0]).split(tool[3])[0]),
        system=None if system is None else _learn_enclosure(turns, system[0], system[1]),
    )


def _render(processor: Any, markup: Markup, *texts: str, add_generation_prompt: bool = False) -> list[str] | None:
    """What a template writes before, between and after the texts of messages; None if it does not write them."""
    for parts in (False, True):
        messages = [
            {"role": ROLES[text], "content": [{"type": "text", "text": text}] if parts else text} for text in texts
        ]
        try:
            written = processor.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception:  # A template may fail in any way on roles or contents that it is not written for.
            continue
        around = re.split(f"({'|'.join(texts)})", written)
        if around[1::2] == list(texts):
            return [markup.encode(each) for each in around[::2]]
    return None


def _learn_enclosure(turns: Turns, before: str, after: str) -> tuple[str, str] | None:
    """What marks a message that a template writes into a user turn; None if it is not there, or not marked."""
    _, opening, first = before.rpartition(turns.opens)
    marks = first.strip(), after.strip()
    return marks if opening and all(marks) and turns.opens not in after else None


def _pattern(literal: str) -> re.Pattern[str]:
    """A regular expression for a literal, whatever its white space."""
    words = r"\s*".join(map(re.escape, literal.split()))
    # Not in the middle of a word. Scripts that are written without spaces may come right before it.
    before = r"(?<![A-Za-z0-9_])" if re.match(r"\w", literal, re.ASCII) else ""
    after = r"(?![A-Za-z0-9_])" if re.search(r"\w\s*\Z", literal, re.ASCII) else ""
    return re.compile(before + words + after)


def _common_start(left: str, right: str) -> str:
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _enclosed(first: str, last: str) -> re.Pattern[str]:
    return re.compile(f"{_pattern(first).pattern}.*?{_pattern(last).pattern}", re.DOTALL)


def _is_blank(text: str) -> bool:
    """Whether a text has only white space, special tokens and placeholders."""
    return re.fullmatch(rf"[\s{SPECIALS}{IMAGE}]*", text) is not None


def _follows_special(text: str, start: int) -> bool:
    before = text[:start].rstrip()
    return not before or is_special(before[-1]) or before[-1] == IMAGE
