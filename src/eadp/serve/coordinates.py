"""What the engine must be told for models whose positions are coordinates (M-RoPE).

vLLM has a way for pruned tokens to take their coordinates along, made for its own video pruning: where that is on, it
asks the model for positions again once features are there. We turn it on for our architectures by the smallest rate;
they take no videos, so that no video is pruned by it.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.platforms import current_platform

SMALLEST = 1e-9
CPU_WORKER = "eadp.serve.cpu_worker.CoordinatesWorker"


class CoordinatesConfig(VerifyAndUpdateConfig):
    """vLLM calls it for our architectures when it has read its settings."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            raise ValueError(
                "only the first stage of a pipeline sees images, so later ones would not know where kept tokens were: "
                "serve this model with tensor parallelism (--tensor-parallel-size) instead"
            )
        vllm_config.model_config.multimodal_config.video_pruning_rate = SMALLEST
        if current_platform.is_cpu() and vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = CPU_WORKER
