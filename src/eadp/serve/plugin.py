"""What vLLM calls at its start: the new architectures by name only, so that nothing is imported too early."""

from __future__ import annotations

from eadp.serve import versions

ARCHITECTURES = {
    "llava": "EadpLlavaForConditionalGeneration",
    "llava_next": "EadpLlavaNextForConditionalGeneration",
    "llava_onevision": "EadpLlavaOnevisionForConditionalGeneration",
    "qwen2_5_vl": "EadpQwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "EadpQwen3VLForConditionalGeneration",
}
"""The `model_type` of a checkpoint → the architecture that serves it pruned. Each has a file of its own here."""

WITH_COORDINATES = ("qwen2_5_vl", "qwen3_vl")
"""Families whose positions are coordinates, so that kept tokens must take theirs along."""


def register() -> None:
    """Make the architectures known. vLLM calls it in every process, at times more than once.

    With another release of vLLM they are refused when one is asked for; who asks for none is not bothered.
    """
    from vllm.model_executor.models import ModelRegistry

    tested = versions.installed() in versions.TESTED
    for family, architecture in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, f"eadp.serve.{family if tested else 'refused'}:{architecture}")
    if tested:
        from vllm.model_executor.models.config import MODELS_CONFIG_MAP

        from eadp.serve.coordinates import CoordinatesConfig

        MODELS_CONFIG_MAP.update({ARCHITECTURES[family]: CoordinatesConfig for family in WITH_COORDINATES})
