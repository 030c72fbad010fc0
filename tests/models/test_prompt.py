"""Prompts that the processor's own chat template writes."""

from __future__ import annotations

from typing import Any

import pytest

from eadp.models.prompt import build_prompt


class Templated:
    """A processor whose template lists the parts of the user turn."""

    chat_template: str | None = "…"

    def apply_chat_template(self, conversation: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        ((turn,), _) = conversation, add_generation_prompt
        parts = [part.get("text", f"<{part['type']}>") for part in turn["content"]]
        return f"{turn['role']}: {' '.join(parts)}" + " assistant:" * add_generation_prompt


@pytest.mark.parametrize(
    ("counts", "prompt"),
    [
        ({}, "user: <image> How many? assistant:"),
        ({"images": 2}, "user: <image> <image> How many? assistant:"),
        ({"images": 0, "videos": 1}, "user: <video> How many? assistant:"),
        ({"videos": 1}, "user: <image> <video> How many? assistant:"),
    ],
)
def test_images_come_before_clips_and_the_question_is_last(counts: dict[str, int], prompt: str) -> None:
    assert build_prompt(Templated(), "How many?", **counts) == prompt


def test_a_processor_without_a_template_is_refused() -> None:
    processor = Templated()
    processor.chat_template = None
    with pytest.raises(ValueError, match="no chat template: write the prompt yourself"):
        build_prompt(processor, "How many?")
