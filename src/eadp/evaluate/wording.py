"""The part of a harness's prompt that guides pruning. The model always reads the full prompt."""

from __future__ import annotations

import re

GUIDING_QUESTIONS = ("harness", "released")
"""The full question as the harness asks it, or the question as EADP's release shortens it."""

SHORT_ANSWER_REQUEST = "Answer the question using a single word or phrase."
"""The sentence that LLaVA's prompts and both harnesses append to a question."""


def remove_short_answer_request(question: str) -> str:
    """Remove the request for a short answer, as EADP's release does before it encodes the question."""
    return re.sub(rf"\s*{re.escape(SHORT_ANSWER_REQUEST)}", "", question).strip()
