"""The engine configuration of models with M-RoPE positions.

With its own video pruning on, vLLM asks the model for the positions again once the features are computed. The plugin
uses this mechanism to give kept tokens their coordinates: it turns vLLM's video pruning on, at the smallest rate. Its
M-RoPE architectures take no videos, so vLLM itself prunes nothing.
"""

from __future__ import annotations

from typing import Any

from eadp.serve.compat import VerifyAndUpdateConfig, current_platform

SMALLEST_PRUNING_RATE = 1e-9
CPU_WORKER = "eadp.serve.cpu_worker.MRopeCPUWorker"


class MRopeConfig(VerifyAndUpdateConfig):
    """Configuration hook that vLLM calls for the M-RoPE architectures of the plugin after reading its settings."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            raise ValueError(
                "pipeline parallelism does not work with pruning on this model, because only the first stage encodes "
                "images and later stages would not know the positions of kept tokens: use tensor parallelism "
                "(--tensor-parallel-size) instead"
            )
        vllm_config.model_config.multimodal_config.video_pruning_rate = SMALLEST_PRUNING_RATE
        if current_platform.is_cpu() and vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = CPU_WORKER
