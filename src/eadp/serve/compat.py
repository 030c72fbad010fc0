"""The parts of vLLM that the plugin uses, in one place.

They are internals and change between releases, so the plugin works with the tested releases only (`versions`). To move
to a new release of vLLM, start here: this module lists what the plugin imports, and the comments list the methods that
its classes override. A name is looked up when it is first imported, so that a process loads only the models it serves.
"""

from __future__ import annotations

from typing import Any

from eadp.compat import import_name
from eadp.serve.versions import TESTED_VERSIONS, installed_version

_MODELS = "vllm.model_executor.models"

_NAMES = {
    # Registration of architectures, of their processors, and of a hook on the engine's configuration.
    "ModelRegistry": _MODELS,
    "MULTIMODAL_REGISTRY": "vllm.multimodal",
    "MODELS_CONFIG_MAP": f"{_MODELS}.config",
    "VerifyAndUpdateConfig": f"{_MODELS}.config",
    # Processors. The plugin overrides apply, get_dummy_inputs, _apply_hf_processor_main, _get_mm_fields_config and
    # _get_mm_prompt_updates; in the processing info get_num_video_tokens and get_mm_max_tokens_per_item.
    "EmbeddingItems": "vllm.multimodal.parse",
    "MultiModalFieldConfig": "vllm.multimodal.inputs",
    "MultiModalHasher": "vllm.multimodal.hasher",
    "cached_tokenizer_from_config": "vllm.tokenizers",
    # Workers. The plugin overrides CPUWorker.load_model and determine_available_memory, and sets
    # is_multimodal_pruning_enabled of its model runner.
    "CPUWorker": "vllm.v1.worker.cpu_worker",
    "ImageDummyOptions": "vllm.config.multimodal",
    "TimingContext": "vllm.multimodal.processing.context",
    "current_platform": "vllm.platforms",
    "get_pp_group": "vllm.distributed",
    "get_tensor_model_parallel_rank": "vllm.distributed",
    "group_and_batch_mm_kwargs": "vllm.multimodal.utils",
    "init_logger": "vllm.logger",
    "tensor_model_parallel_all_gather": "vllm.distributed",
    # Models. The plugin overrides embed_multimodal and load_weights, and on Qwen get_mrope_input_positions and
    # recompute_mrope_positions.
    "LlavaDummyInputsBuilder": f"{_MODELS}.llava",
    "LlavaForConditionalGeneration": f"{_MODELS}.llava",
    "LlavaMultiModalProcessor": f"{_MODELS}.llava",
    "LlavaProcessingInfo": f"{_MODELS}.llava",
    "LlavaNextForConditionalGeneration": f"{_MODELS}.llava_next",
    "LlavaNextMultiModalProcessor": f"{_MODELS}.llava_next",
    "LlavaNextProcessingInfo": f"{_MODELS}.llava_next",
    "LlavaOnevisionDummyInputsBuilder": f"{_MODELS}.llava_onevision",
    "LlavaOnevisionForConditionalGeneration": f"{_MODELS}.llava_onevision",
    "LlavaOnevisionMultiModalProcessor": f"{_MODELS}.llava_onevision",
    "LlavaOnevisionProcessingInfo": f"{_MODELS}.llava_onevision",
    "Qwen2_5_VLDummyInputsBuilder": f"{_MODELS}.qwen2_5_vl",
    "Qwen2_5_VLForConditionalGeneration": f"{_MODELS}.qwen2_5_vl",
    "Qwen2_5_VLMultiModalProcessor": f"{_MODELS}.qwen2_5_vl",
    "Qwen2_5_VLProcessingInfo": f"{_MODELS}.qwen2_5_vl",
    "Qwen3VLDummyInputsBuilder": f"{_MODELS}.qwen3_vl",
    "Qwen3VLForConditionalGeneration": f"{_MODELS}.qwen3_vl",
    "Qwen3VLMultiModalProcessor": f"{_MODELS}.qwen3_vl",
    "Qwen3VLProcessingInfo": f"{_MODELS}.qwen3_vl",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    tested = f"; eadp was tested with vLLM {' and '.join(TESTED_VERSIONS)}"
    return import_name(_NAMES[name], name, f"vLLM {installed_version()}", tested)
