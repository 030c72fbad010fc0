"""What of a harness's prompt guides pruning. The model always reads all of it."""

from __future__ import annotations

import re

QUESTIONS = ("harness", "released")
"""The whole question as the harness asks it, or as EADP's release cuts it."""

SHORT_ANSWER = "Answer the question using a single word or phrase."
"""What LLaVA's prompts, and those of both harnesses, put behind a question."""


def released(question: str) -> str:
    """The question as EADP's release gives it to its text encoder: without the line that asks for a short answer."""
    return re.sub(rf"\s*{re.escape(SHORT_ANSWER)}", "", question).strip()
