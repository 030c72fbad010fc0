"""Hooks on the engine's configuration, which vLLM calls for the architectures of the plugin after reading its settings.

On a CPU, the plugin's worker replaces vLLM's. Everywhere else, vLLM's own worker is used.

With its own video pruning on, vLLM asks models with M-RoPE for the positions again once the features are computed. The
plugin uses this mechanism to give kept tokens their coordinates: it turns vLLM's video pruning on, at the smallest
rate. The architectures of the plugin do not call vLLM's own pruning, so the rate has no other effect.
"""

from __future__ import annotations

from typing import Any

from eadp.serve.compat import VerifyAndUpdateConfig, current_platform

SMALLEST_PRUNING_RATE = 1e-9
CPU_WORKER = "eadp.serve.cpu_worker.PruningCPUWorker"


class PruningConfig(VerifyAndUpdateConfig):
    """The hook for all architectures."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        if current_platform.is_cpu() and vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = CPU_WORKER


class MRopeConfig(PruningConfig):
    """The hook for architectures with M-RoPE."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        PruningConfig.verify_and_update_config(vllm_config)
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            raise ValueError(
                "pipeline parallelism does not work with pruning on this model, because only the first stage encodes "
                "images and later stages would not know the positions of kept tokens: use tensor parallelism "
                "(--tensor-parallel-size) instead"
            )
        multimodal = vllm_config.model_config.multimodal_config
        if multimodal.video_pruning_rate not in (None, 0, SMALLEST_PRUNING_RATE):
            raise ValueError(
                "--video-pruning-rate is for vLLM's own video pruning, which this architecture replaces: leave it out, "
                "and use --method evs or --method vidcom2 with --keep (1 − the rate)"
            )
        multimodal.video_pruning_rate = SMALLEST_PRUNING_RATE
