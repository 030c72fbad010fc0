"""The entry point of the plugin. It registers architectures by name, so that vLLM imports them only when needed."""

from __future__ import annotations

from eadp.serve import versions

ARCHITECTURES = {
    "llava": "EadpLlavaForConditionalGeneration",
    "llava_next": "EadpLlavaNextForConditionalGeneration",
    "llava_onevision": "EadpLlavaOnevisionForConditionalGeneration",
    "qwen2_5_vl": "EadpQwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "EadpQwen3VLForConditionalGeneration",
}
"""The `model_type` of a checkpoint → the architecture that serves it with pruning, in the module of the same name."""

MROPE_FAMILIES = ("qwen2_5_vl", "qwen3_vl")
"""Families with M-RoPE positions, on which kept tokens may keep their coordinates."""


def register() -> None:
    """Register the architectures with vLLM, which calls this in every process, sometimes more than once.

    With an untested version of vLLM, loading one of the architectures raises an error. Other models are not affected.
    """
    from eadp.serve.compat import ModelRegistry

    tested = versions.installed_version() in versions.TESTED_VERSIONS
    for family, architecture in ARCHITECTURES.items():
        module = family if tested else "unsupported_vllm"
        ModelRegistry.register_model(architecture, f"eadp.serve.{module}:{architecture}")
    if tested:
        from eadp.serve.compat import MODELS_CONFIG_MAP
        from eadp.serve.engine_config import MRopeConfig, PruningConfig

        MODELS_CONFIG_MAP.update(
            {
                architecture: MRopeConfig if family in MROPE_FAMILIES else PruningConfig
                for family, architecture in ARCHITECTURES.items()
            }
        )
